"""Run of a suite: everything is compiled in parallel, then a worker process measures cells.

The process may hang. The order and the limit of time are decided here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, as_completed
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import cast

from ...checking.checked import Const
from ...text.diagnostics import CuirError
from ..search.compiling import BuildResult, Job
from ..search.space import plain
from ..timing.worker import WorkerLost
from .cell_benchmark import BUILD_SECONDS, Cell
from .reference import FAMILY
from .result_rows import Row
from .results import Results

REPEATS = 3  # of a row, each without one more contender, in a new process

Ask = Callable[[Mapping[str, object], float], Mapping[str, object]]
Prime = Callable[[Sequence[Cell]], AbstractContextManager[Sequence[Future[str]]]]


@dataclass(frozen=True)
class Planned:
    """Cell with its program's text, the kernel's name and the settings to time."""

    cell: Cell
    text: str
    kernel: str
    settings: tuple[Mapping[str, Const], ...]


@dataclass
class ProgressCount:
    """Progress of a suite: the current work (`lasting`: worth a printed line), or the row just measured."""

    doing: str = ""
    row: Row | None = None
    finished: int = 0
    of: int = 0
    lasting: bool = False


@dataclass(frozen=True)
class SuiteRun:
    """Run of a suite.

    Attributes:
        cells: All cells.
        results: Results so far; new rows are added to them.
        dtype: Of the tensors.
        peers: Contenders of other libraries.
        rounds: Rounds of timing.
        limit: Seconds after which no further cell begins.
        reference: Folder of a kernel of the user's that is timed, too.
        clock: Returns seconds.
    """

    cells: Sequence[Cell]
    results: Results
    dtype: str
    peers: Sequence[str]
    rounds: int
    limit: float
    reference: str | None = None
    clock: Callable[[], float] = time.monotonic


def run_cells(
    suite: SuiteRun,
    plan: Callable[[Cell], Planned],
    compile: Callable[[Sequence[Job]], Iterator[tuple[int, BuildResult]]],
    prime: Prime,
    ask: Ask,
    tell: Callable[[ProgressCount], None],
) -> bool:
    """Measure the cells that the results lack; return whether the limit of time sufficed for all.

    `compile` compiles our kernels into the cache. `prime` is a block during which other processes compile what the
    other contenders need; when it ends, none of them is left, so nothing shares the GPU with what is timed.
    """
    start, clock, results = suite.clock(), suite.clock, suite.results
    requested = [*suite.peers, *([FAMILY] if suite.reference else [])]
    missing = results.missing(suite.cells, requested)
    refused: list[tuple[Job, str]] = []
    work: list[Job] = []
    with prime(missing) as primed:
        planned = [plan(c) for c in missing]
        for p in planned:
            work += [(p.text, p.kernel, s) for s in p.settings if (p.text, p.kernel, s) not in work]
        for finished, (index, build) in enumerate(compile(work), 1):
            tell(ProgressCount(f"compile {finished} of {len(work)}"))
            if build.refused:
                refused.append((work[index], build.refused))
        for finished, _ in enumerate(as_completed(primed), 1):
            tell(ProgressCount(f"compile the other contenders, {finished} of {len(primed)}"))
    tell(
        ProgressCount(
            f"{len(work)} kernels compiled, and for {len(primed)} calls of other contenders, in {clock() - start:.0f} s", lasting=True
        )
    )
    for number, p in enumerate(planned):
        if clock() - start > suite.limit:
            return False
        tell(ProgressCount(p.cell.name, None, number, len(planned)))
        settings = [s for s in p.settings if (p.text, p.kernel, s) not in [job for job, _ in refused]]
        row: Row
        if not settings:
            row = {**p.cell.as_json(), "failed": next((why for job, why in refused if job[0] == p.text), "no setting to time")}
        else:
            request = {
                "do": "cell",
                **p.cell.as_json(),
                "dtype": suite.dtype,
                "settings": [plain(s) for s in settings],
                "peers": list(suite.peers),
                "reference": suite.reference,
                "rounds": suite.rounds,
            }
            row = {**measure_cell(p.cell, request, ask, lambda news: tell(ProgressCount(news, lasting=True))), "asked": requested}
        results.add(row)
        tell(ProgressCount(p.cell.name, row, number + 1, len(planned)))
    return True


def run_calls(suite: SuiteRun, do: str, ask: Ask, tell: Callable[[ProgressCount], None]) -> bool:
    """Run `run_cells` for suites in which ours is a call, which compiles its kernel.

    `do` is the request to the measuring process: the suite's kind.
    """
    start, missing = suite.clock(), suite.results.missing(suite.cells, suite.peers)
    for number, cell in enumerate(missing):
        if suite.clock() - start > suite.limit:
            return False
        tell(ProgressCount(cell.name, None, number, len(missing)))
        request = {"do": do, **cell.as_json(), "dtype": suite.dtype, "peers": list(suite.peers), "rounds": suite.rounds}
        row: Row = {**measure_cell(cell, request, ask, lambda news: tell(ProgressCount(news, lasting=True))), "asked": list(suite.peers)}
        suite.results.add(row)
        tell(ProgressCount(cell.name, row, number + 1, len(missing)))
    return True


def measure_cell(cell: Cell, request: Mapping[str, object], ask: Ask, note: Callable[[str], None]) -> Row:
    """Return the row of a cell.

    A contender that hangs or ends the process costs only its entry: the rest is measured again without it.
    """
    lost: dict[str, str] = {}
    while True:
        try:
            return cast(Row, dict(ask({**request, "lost": lost}, BUILD_SECONDS)))
        except WorkerLost as error:
            name, why = error.doing, f"{error.status}: {error}"
            if not name or name in lost or len(lost) == REPEATS:
                return {**cell.as_json(), "failed": why + (f" ({', '.join([*lost, name])})" if name else "")}
            lost[name] = why
            note(f"{cell.name}: {name}: {why}; once more without it")
        except CuirError as error:
            return {**cell.as_json(), "failed": f"{error.diagnostics[0].code}: {error.diagnostics[0].message}"}
