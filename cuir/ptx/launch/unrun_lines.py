"""Lines of a kernel of which no instruction ran: what did not run is not judged."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from ..machine.findings import is_of_toolkit
from ..machine.program import Program


@dataclass(frozen=True)
class UnrunLines:
    """Lines of a file with instructions of which none ran.

    Attributes:
        path: The source, "" for the text of the PTX.
        lines: First and last lines of ranges.
        count: Their number; `of` counts all lines with instructions.
    """

    path: str
    lines: tuple[tuple[int, int], ...]
    count: int
    of: int

    def __str__(self) -> str:
        return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in self.lines)


def list_unrun_lines(program: Program, ran: Collection[int]) -> tuple[UnrunLines, ...]:
    """Return the lines that never ran of each source, without headers of the toolkit; ran: numbers of instructions."""
    hit: dict[tuple[str, int], bool] = {}
    for n, (instruction, _) in enumerate(program.instructions):
        places = [(f.path, f.line) for f in instruction.chain] or [("", instruction.line)]
        for place in places:
            hit[place] = hit.get(place, False) or n in ran
    found = []
    for path in sorted({path for path, _ in hit}):
        lines = sorted(line for p, line in hit if p == path and line > 0)
        missing = [line for line in lines if not hit[path, line]]
        if missing and not is_of_toolkit(path):
            found.append(UnrunLines(path, tuple(_join(lines, set(missing))), len(missing), len(lines)))
    return tuple(found)


def _join(lines: list[int], missing: set[int]) -> Iterator[tuple[int, int]]:
    """Yield first and last of neighbours among the lines with instructions that are missing."""
    for is_missing, group in itertools.groupby(lines, missing.__contains__):
        if is_missing:
            part = list(group)
            yield part[0], part[-1]
