"""Run of a suite: everything is compiled in parallel, then a worker process measures cells.

The process may hang. The order and the limit of time are decided here.

Compilation of contenders in parallel processes before anything is timed, into disk caches.

A kernel of FlexAttention or of torch.compile is cached by its graph, shapes and device, not by the process: a process
that makes the same call on the same shapes leaves the code where the next one finds it. So does a reference with a
cache of cubins.
"""

from __future__ import annotations

import concurrent.futures as futures
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, as_completed
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol, cast

import torch

from ...checking.checked import Const
from ...spec.specification import Specification
from ...text.diagnostics import CuirError
from ..search.compiling import BuildResult, Job
from ..search.space import plain
from ..timing.problem import make_tensors
from ..timing.timing_protocol import describe_error
from ..timing.worker import WorkerLost
from .cell_benchmark import BUILD_SECONDS, Cell
from .peers import COMPILED, contenders
from .reference import FAMILY
from .result_rows import Row
from .results import Results

REPEATS = 3  # of a row, each without one more contender, in a new process

Ask = Callable[[Mapping[str, object], float], Mapping[str, object]]
Request = Mapping[str, object]
Spread = Callable[[Sequence[tuple[Cell, Request]]], Iterator[tuple[Cell, Row]]]
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
        spread: Measures requests for cells on several GPUs, and yields the rows as they come; None for one here.
    """

    cells: Sequence[Cell]
    results: Results
    dtype: str
    peers: Sequence[str]
    rounds: int
    limit: float
    reference: str | None = None
    clock: Callable[[], float] = time.monotonic
    spread: Spread | None = None


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
    if suite.spread is not None:  # each node compiles what it measures
        return _measure_spread(suite, [(c, _make_request(suite, c, plan(c).settings)) for c in missing], requested, tell)
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
            request = _make_request(suite, p.cell, settings)
            row = {**measure_cell(p.cell, request, ask, lambda news: tell(ProgressCount(news, lasting=True))), "asked": requested}
        results.add(row)
        tell(ProgressCount(p.cell.name, row, number + 1, len(planned)))
    return True


def _make_request(suite: SuiteRun, cell: Cell, settings: Sequence[Mapping[str, Const]]) -> Request:
    """Return the request for a cell of kernels."""
    return {
        "do": "cell",
        **cell.as_json(),
        "dtype": suite.dtype,
        "settings": [plain(s) for s in settings],
        "peers": list(suite.peers),
        "reference": suite.reference,
        "rounds": suite.rounds,
    }


def _measure_spread(
    suite: SuiteRun, requests: Sequence[tuple[Cell, Request]], requested: Sequence[str], tell: Callable[[ProgressCount], None]
) -> bool:
    """Measure cells on several GPUs; return True, as there is no limit of time."""
    assert suite.spread is not None
    for number, (cell, found) in enumerate(suite.spread(requests), 1):
        row: Row = {**found, "asked": list(requested)}
        suite.results.add(row)
        tell(ProgressCount(cell.name, row, number, len(requests)))
    return True


def run_calls(suite: SuiteRun, do: str, ask: Ask, tell: Callable[[ProgressCount], None]) -> bool:
    """Run `run_cells` for suites in which ours is a call, which compiles its kernel.

    `do` is the request to the measuring process: the suite's kind.
    """
    start, missing = suite.clock(), suite.results.missing(suite.cells, suite.peers)
    if suite.spread is not None:
        settings = {"do": do, "dtype": suite.dtype, "peers": list(suite.peers), "rounds": suite.rounds}
        return _measure_spread(suite, [(c, {**settings, **c.as_json()}) for c in missing], suite.peers, tell)
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


SECONDS = 120.0  # for one request; the timing process does what takes longer
SHARE = 0.8  # of the GPU's memory, for all processes together


class Answerer(Protocol):
    """Process that answers requests (`cuir.performance.timing.worker.Worker`)."""

    def ask(self, request: Mapping[str, object], seconds: float) -> Mapping[str, object]: ...

    def close(self) -> None: ...


def requests(
    cells: Sequence[Cell], dtype: str, peers: Sequence[str], reference: str | None, names: Sequence[str], processes: int
) -> list[Mapping[str, object]]:
    """Return requests for `answer_ahead`.

    These are each configuration of the reference, and each cell with a peer that compiles.
    """
    compiling = [p for p in peers if p in COMPILED]
    work: list[Mapping[str, object]] = [{"do": "prime_reference", "reference": reference, "name": name} for name in names]
    if compiling:
        work += [{"do": "prime", **c.as_json(), "dtype": dtype, "peers": compiling, "share": SHARE / processes} for c in cells]
    return work


@contextmanager
def answer_ahead(
    work: Sequence[Mapping[str, object]], start: Callable[[], Answerer], processes: int
) -> Iterator[list[futures.Future[str]]]:
    """Answer requests in several processes while the block runs; at its end none is left.

    Each process is started by `start`. Yields a future for each request: why it failed, "" if it did not. A failure is
    no error: the timing process reports it.
    """
    local, started = threading.local(), list[Answerer]()

    def answer_request(request: Mapping[str, object]) -> str:
        if not hasattr(local, "worker"):
            local.worker = start()
            started.append(local.worker)
        try:
            return str(local.worker.ask(request, SECONDS).get("failed", ""))
        except Exception as error:  # reported again where the cell is measured
            return describe_error(error)

    pool = futures.ThreadPoolExecutor(max(1, min(processes, len(work))))
    try:
        yield [pool.submit(answer_request, request) for request in work]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in started:
            worker.close()


def prime_peers(cell: Cell, spec: Specification, dtype: torch.dtype, peers: Sequence[str], share: float, device: str = "cuda") -> str:
    """Call the peers of a cell once; return why one did not run, "" if all did.

    `share` is the share of the GPU's memory that this process may take. A contender that does not fit was compiled
    before it ran, which suffices.
    """
    if device == "cuda":
        torch.cuda.set_per_process_memory_fraction(min(1.0, share))
    failed = ""
    for name, call in contenders(peers, spec, make_tensors(cell.shape, dtype, device), cell.shape.D**-0.5).items():
        try:
            call()
        except torch.cuda.OutOfMemoryError:
            continue
        except Exception as error:  # PyTorch's compilers raise whatever they meet
            failed = f"{name}: {describe_error(error)}"
    return failed
