"""Compilation of contenders in parallel processes before anything is timed, into disk caches.

A kernel of FlexAttention or of torch.compile is cached by its graph, shapes and device, not by the process: a process
that makes the same call on the same shapes leaves the code where the next one finds it. So does a reference with a
cache of cubins.
"""

from __future__ import annotations

import concurrent.futures as futures
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch

from ...spec.specification import Specification
from ..timing.problem import make_tensors
from ..timing.timing_protocol import describe_error
from .cell_benchmark import Cell
from .peers import COMPILED, contenders

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
