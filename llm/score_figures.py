"""Figure of an evaluation: pass@k of each model beside the published figures, and reasons of failures.

Needs matplotlib.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cuir.text.figures import load_pyplot, save_figure

from .scores import KS, PUBLISHED, REASONS, Score


def plot(scores: Sequence[Score], path: Path) -> None:
    """Write a PNG or SVG, by the name's ending.

    Raises CuirError U120 without matplotlib, U108 if the file cannot be written.
    """
    pyplot = load_pyplot("cuir eval --show")
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10.5, 3.4), width_ratios=(3, 2), layout="constrained")
    series: list[tuple[str, list[float | None]]] = [(s.model, [s.at[k] for k in KS]) for s in scores]
    series += [(f"{s.model}, first answers", [s.first[k] for k in KS]) for s in scores]
    series.append(("CuBridge, published", [PUBLISHED[k] for k in KS]))
    width = 0.8 / len(series)
    for number, (name, values) in enumerate(series):
        points = [(i + number * width, v) for i, v in enumerate(values) if v is not None]
        style = (
            {"color": "black", "alpha": 0.35}
            if number == len(series) - 1
            else {"color": f"C{number % len(scores)}", "alpha": 1.0 if number < len(scores) else 0.5}
        )
        bars = left.bar([x for x, _ in points], [v for _, v in points], width, align="edge", label=name, **style)
        left.bar_label(bars, fmt="%.2f", fontsize=7)
    left.set_xticks([i + 0.4 for i in range(len(KS))], [f"pass@{k}" for k in KS])
    left.set_ylim(0, 1.12)
    left.set_title(
        f"share of right programs, mean over at most {max(s.variants for s in scores)} variants ({sum(s.samples for s in scores)} samples in all)",
        fontsize=8,
    )
    left.legend(fontsize=7, frameon=False, loc="upper center", ncols=2, bbox_to_anchor=(0.5, -0.12))
    reasons = [r for r in REASONS if any(s.reasons.get(r) for s in scores)]
    start = [0] * len(reasons)
    for number, s in enumerate(scores):
        counts = [s.reasons.get(r, 0) for r in reasons]
        right.barh(reasons, counts, left=start, color=f"C{number}", label=s.model)
        start = [a + b for a, b in zip(start, counts)]
    if reasons:
        right.invert_yaxis()
        right.xaxis.get_major_locator().set_params(integer=True)
    else:
        right.text(0.5, 0.5, "none", ha="center", fontsize=9, transform=right.transAxes)
        right.set(xticks=[], yticks=[])
    right.set_title("attempts that failed, by the stage that refused them", fontsize=8)
    for panel in (left, right):
        panel.tick_params(labelsize=8)
        panel.spines[["top", "right"]].set_visible(False)
    save_figure(figure, path)
