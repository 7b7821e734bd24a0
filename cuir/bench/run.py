"""Runs the cells of a suite: kernels compiled first, in parallel; then cell by cell in a process that may hang. Owns the order and the limit of time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..checked import Const
from ..measure.worker import WorkerLost
from ..tuning.compiling import Built, Job
from ..tuning.space import plain
from .cells import Cell
from .results import Results, Row

CELL_SECONDS = 240.0  # three contenders that compile themselves, and memory to be filled

Ask = Callable[[Mapping[str, Any], float], Mapping[str, Any]]


@dataclass(frozen=True)
class Planned:
    """A cell with its program's text, the kernel's name and the settings to time."""

    cell: Cell
    text: str
    kernel: str
    settings: tuple[Mapping[str, Const], ...]


@dataclass
class Told:
    """Where a suite stands: what is being done, or the row that was just measured."""

    doing: str = ""
    row: Row | None = None
    done: int = 0
    of: int = 0


def run_cells(
    cells: Sequence[Cell], results: Results, plan: Callable[[Cell], Planned], compile: Callable[[Sequence[Job]], Iterator[tuple[int, Built]]],
    ask: Ask, *, dtype: str, peers: Sequence[str], rounds: int, limit: float, tell: Callable[[Told], None], clock: Callable[[], float] = time.monotonic,
) -> bool:  # fmt: skip
    """Measures what the results lack. Returns whether nothing was left out for want of time."""
    start = clock()
    planned = [plan(c) for c in results.missing(cells)]
    work: list[Job] = []
    for p in planned:
        work += [(p.text, p.kernel, s) for s in p.settings if (p.text, p.kernel, s) not in work]
    refused: list[tuple[Job, str]] = []
    for done, (index, built) in enumerate(compile(work), 1):
        tell(Told(f"compile {done} of {len(work)}"))
        if built.refused:
            refused.append((work[index], built.refused))
    for number, p in enumerate(planned):
        if clock() - start > limit:
            return False
        tell(Told(p.cell.name, None, number, len(planned)))
        settings = [s for s in p.settings if (p.text, p.kernel, s) not in [job for job, _ in refused]]
        row: Row
        if not settings:
            row = {**p.cell.as_json(), "failed": next((why for job, why in refused if job[0] == p.text), "no setting to time")}
        else:
            request = {
                "do": "cell",
                **p.cell.as_json(),
                "dtype": dtype,
                "settings": [plain(s) for s in settings],
                "peers": list(peers),
                "rounds": rounds,
            }
            try:
                row = dict(ask(request, CELL_SECONDS))
            except WorkerLost as lost:
                row = {**p.cell.as_json(), "failed": f"{lost.status}: {lost}"}
        results.add(row)
        tell(Told(p.cell.name, row, number + 1, len(planned)))
    return True
