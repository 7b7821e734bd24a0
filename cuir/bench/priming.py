"""What contenders compile, compiled before anything is timed: in parallel processes, into the disk caches that the timing process reads.

A kernel of FlexAttention or of torch.compile is cached by its graph, shapes and device, not by the process: a process that makes the same call on the
same shapes leaves the code where the next one finds it. So does a reference that keeps its own cubins. Owns no cache and no figure.
"""

from __future__ import annotations

import concurrent.futures as futures
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from ..measure.problem import make_tensors
from ..measure.protocol import describe_error
from ..spec.specification import Specification
from .cells import Cell
from .peers import COMPILED, contenders

SECONDS = 120.0  # for one request; what takes longer is left to the timing process
SHARE = 0.8  # of the GPU's memory, for all processes together


class Asked(Protocol):
    """A process that answers requests (`cuir.measure.worker.Worker`)."""

    def ask(self, request: Mapping[str, Any], seconds: float) -> Mapping[str, Any]: ...

    def close(self) -> None: ...


def requests(
    cells: Sequence[Cell], dtype: str, peers: Sequence[str], reference: str | None, names: Sequence[str], processes: int
) -> list[dict[str, Any]]:
    """Requests for `primed`: each configuration of the reference, each cell that has a peer that compiles."""
    compiling = [p for p in peers if p in COMPILED]
    work: list[dict[str, Any]] = [{"do": "prime_reference", "reference": reference, "name": name} for name in names]
    if compiling:
        work += [{"do": "prime", **c.as_json(), "dtype": dtype, "peers": compiling, "share": SHARE / processes} for c in cells]
    return work


@contextmanager
def primed(work: Sequence[Mapping[str, Any]], start: Callable[[], Asked], processes: int) -> Iterator[list[futures.Future[str]]]:
    """Answers requests in so many processes, each started by `start`, while the block runs; at its end none is left.

    Gives a future for each request: why it came to nothing, empty if it did not. None of that is an error: the timing process says what fails there.
    """
    local, started = threading.local(), list[Asked]()

    def one(request: Mapping[str, Any]) -> str:
        if not hasattr(local, "worker"):
            local.worker = start()
            started.append(local.worker)
        try:
            return str(local.worker.ask(request, SECONDS).get("failed", ""))
        except Exception as error:  # told, and met again where the cell is measured
            return describe_error(error)

    pool = futures.ThreadPoolExecutor(max(1, min(processes, len(work))))
    try:
        yield [pool.submit(one, request) for request in work]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in started:
            worker.close()


def prime_peers(cell: Cell, spec: Specification, dtype: torch.dtype, peers: Sequence[str], share: float, device: str = "cuda") -> str:
    """Calls the peers of a cell once. Returns why one did not run, empty if all did.

    share: of the GPU's memory that this process may take. A contender that does not fit was compiled before it ran, which is all that is wanted.
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
