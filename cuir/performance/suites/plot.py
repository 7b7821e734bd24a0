"""Figure of results: rates over the length, a panel for each variant and model. Needs matplotlib.

Panels of decoding are divided by number of queries and batch, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ...text.figures import load_pyplot, save_figure
from .cell_benchmark import queries
from .result_rows import Row
from .results import names_of_peers, ours, peers, rate, unit

WIDTH = 4  # panels in a row


def plot(head: Mapping[str, object], rows: Sequence[Row], path: Path) -> None:
    """Write a PNG or SVG, by the name's ending.

    Raises CuirError U120 without matplotlib, U108 if it cannot be written.
    """
    pyplot = load_pyplot("cuir bench SUITE --show")
    series = _series(rows)
    across = min(WIDTH, max(1, len(series)))
    down = -(-max(1, len(series)) // across)
    figure, axes = pyplot.subplots(down, across, figsize=(3.6 * across, 2.8 * down), squeeze=False, sharey=True)
    names = ["cuir", *names_of_peers(rows)]
    for panel, (title, lines) in zip(axes.flat, series.items()):
        for number, name in enumerate(names):
            points = lines.get(name, [])
            style = {"linewidth": 2.2, "color": "black"} if name == "cuir" else {"linewidth": 1.2, "color": f"C{number - 1}"}
            panel.plot([str(m) for m, _ in points], [t for _, t in points], marker="o", markersize=3, label=name, **style)
        panel.set_title(title, fontsize=8)
        panel.tick_params(labelsize=7)
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.3)
    for panel in list(axes.flat)[len(series) :]:
        panel.axis("off")
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=len(names), fontsize=8, frameon=False)
    figure.supylabel(unit(rows), fontsize=8)
    figure.suptitle(f"cuir bench {head['suite']}: {head.get('device')}, {head.get('date')}", fontsize=9)
    figure.tight_layout(rect=(0.0, 0.05, 1.0, 1.0))
    save_figure(figure, path)


def _series(rows: Sequence[Row]) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """Return panel -> contender -> (length, rate), by length."""
    panels: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for row in sorted(rows, key=lambda r: r["shape"][4]):
        B, _, _, M, N = row["shape"][:5]
        few = "" if M == N else f", {B} x {queries(M)}"
        panel = panels.setdefault(f"{row['variant']}, {row['model']}{few}", {})
        mine = ours(row)
        for name, figure in {**({"cuir": rate(mine[1]) or 0.0} if mine else {}), **peers(row)}.items():
            panel.setdefault(name, []).append((N, figure))
    return panels
