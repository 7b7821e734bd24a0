"""Medians over runs, and means over suites, of results of `cuir bench`.

python -m benchmarks.medians FILE ...
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable
from pathlib import Path

from cuir.performance.suites.results import geometric_mean, ours, peers, place, ratios, read


def medians(files: Iterable[Path]) -> dict[str, dict[str, float]]:
    """Return medians by cell: `ours` and peers in TFLOP/s, and `ours / PEER`.

    Each is the median over the files that have the row.
    """
    samples: dict[str, dict[str, list[float]]] = {}
    for path in files:
        for row in read(path)[1]:
            fastest = ours(row)
            if fastest is None:
                continue
            figures = {"ours": fastest[1]["tflops"], **peers(row), **{f"ours / {peer}": x for peer, x in ratios(row).items()}}
            for name, x in figures.items():
                samples.setdefault(place(row), {}).setdefault(name, []).append(x)
    return {at: {name: statistics.median(xs) for name, xs in of.items()} for at, of in samples.items()}


def main() -> None:
    """Run the command line."""
    by_place = medians(map(Path, sys.argv[1:]))
    for at, of in sorted(by_place.items()):
        print(at, ", ".join(f"{name} {x:.3f}" if "/" in name else f"{name} {x:.0f}" for name, x in of.items()))
    for group, rows in (
        ("all", list(by_place.values())),
        ("head dim 64", [of for at, of in by_place.items() if "hd64" in at]),
        ("others", [of for at, of in by_place.items() if "hd64" not in at]),
    ):
        for name in sorted({n for of in rows for n in of if "/" in n}):
            xs = [of[name] for of in rows if name in of]
            print(f"{group}: {name} {geometric_mean(xs):.4f} in the geometric mean of {len(xs)} rows, smallest {min(xs):.3f}")


if __name__ == "__main__":
    main()
