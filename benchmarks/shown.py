"""Table and plot beside results that `cuir bench` and `cuir eval` do not show: `python -m benchmarks.shown FILE...`. Owns no measurement.

A file holds verdicts of `benchmarks.handwritten.judge`, or lines of `benchmarks.old_and_new time`. The plot needs matplotlib.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.handwritten.judge import CLASSES, summary
from cuir.bench.plot import load_pyplot, save
from cuir.text.markdown import table

Row = Mapping[str, Any]
COMMAND = "python -m benchmarks.shown"


def markdown(rows: Sequence[Row]) -> str:
    """A heading, the command that gave the rows, and their table."""
    if "verdict" in rows[0]:
        return "\n".join(
            ["# Kernels written by hand", "", "    python -m benchmarks.handwritten.judge --level LEVEL --out FILE", "", *summary(rows), ""]
        )
    columns = ["name", "length", "old / new", "least", "most", "milliseconds"]
    told = "Milliseconds of the text before over those now, in turns: the median of all rounds, the least and the most. Above 1 the text now is faster."
    lines = table(columns, [[str(r[c]) for c in columns] for r in rows])
    return "\n".join(
        ["# Emitted text before and now", "", told, "", "    python -m benchmarks.old_and_new time OLD --out FILE", "", *lines, ""]
    )


def plot(rows: Sequence[Row], path: Path) -> None:
    """Writes an SVG or PNG. Raises CuirError U120 without matplotlib."""
    (_verdicts if "verdict" in rows[0] else _ratios)(rows, path)


def _verdicts(rows: Sequence[Row], path: Path) -> None:
    """For each class, and for right kernels, the share that is judged as it should be; a bar a level."""
    figure, panel = load_pyplot(COMMAND).subplots(figsize=(8.0, 3.6), layout="constrained")
    groups = [*CLASSES, None]
    levels = [x for x in ("quick", "full") if any(r["level"] == x for r in rows)]
    for i, level in enumerate(levels):
        of = [[r for r in rows if r["level"] == level and r["class"] == g] for g in groups]
        shares = [100 * sum(r["verdict"] == ("passed" if r["right"] else "refused") for r in g) / max(1, len(g)) for g in of]
        bars = panel.bar([x + 0.38 * i for x in range(len(groups))], shares, 0.36, label=level)
        panel.bar_label(bars, [str(len(g)) for g in of], fontsize=7)
    panel.set_xticks([x + 0.19 for x in range(len(groups))], ["right" if g is None else f"class {g}" for g in groups], fontsize=8)
    panel.set_ylabel("% judged rightly, of how many", fontsize=8)
    figure.legend(fontsize=8, loc="outside upper right", ncols=2, frameon=False)
    save(figure, path)


def _ratios(rows: Sequence[Row], path: Path) -> None:
    """A line from the least to the most of each text and length, with the median."""
    figure, panel = load_pyplot(COMMAND).subplots(figsize=(7.0, 0.2 * len(rows) + 1.2), layout="constrained")
    at = range(len(rows))
    panel.hlines(at, [r["least"] for r in rows], [r["most"] for r in rows], linewidth=1)
    panel.plot([r["old / new"] for r in rows], at, "o", markersize=3)
    panel.axvline(1.0, linewidth=0.6, color="black")
    panel.set_yticks(at, [f"{r['name']}, {r['length']}" for r in rows], fontsize=6)
    panel.set_ylim(len(rows) - 0.5, -0.5)
    panel.set_xlabel("milliseconds before / now", fontsize=8)
    save(figure, path)


def main() -> None:
    for path in map(Path, sys.argv[1:]):
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        path.with_suffix(".md").write_text(markdown(rows), encoding="utf-8")
        plot(rows, path.with_suffix(".svg"))


if __name__ == "__main__":
    main()
