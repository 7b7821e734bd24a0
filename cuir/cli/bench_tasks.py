"""Tasks of `cuir bench`: a cell on one GPU of a node, measured by a process of its own there."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, cast

from ..campaigns.campaign import Executor
from ..campaigns.tasks import Json, make_task
from ..performance.suites.cell_benchmark import Cell
from ..performance.suites.result_rows import Row
from ..performance.suites.suite_run import Spread, measure_cell
from ..performance.timing.gpu import versions
from ..performance.timing.worker import Worker
from ..text.diagnostics import CuirError


def spread_over(executor: Executor, device: str | None, origin: str) -> Spread:
    """Return a function that measures requests for cells on the GPUs of a cluster, which must be `device`s."""

    def spread(requests: Sequence[tuple[Cell, Mapping[str, object]]]) -> Iterator[tuple[Cell, Row]]:
        tasks = [make_task(measure_request, cell.as_json(), {"origin": origin, **request}, device, gpus=1) for cell, request in requests]
        cells = {task.key: cell for task, (cell, _) in zip(tasks, requests)}
        with closing(executor.run(tasks)) as results:
            for result in results:
                if isinstance(result.error, CuirError):
                    raise result.error
                cell = cells[result.key]
                failed = {**cell.as_json(), "failed": str(result.error)}
                yield cell, cast(Row, failed if result.error is not None else result.value)

    return spread


def measure_request(
    cell: Mapping[str, Any], request: Mapping[str, object], device: str | None, ask: Callable[..., Mapping[str, object]] | None = None
) -> Json:
    """Measure a cell on the GPU of this task. Raises CuirError U515 if the GPU is another one.

    ask: answers requests; by default a process that starts for this cell.
    """
    from .worker_process import COMMAND

    require_same_gpu(device)
    with Worker(COMMAND) as worker:
        row = measure_cell(Cell.from_json(cast(Any, cell)), request, ask or worker.ask, lambda news: None)
    return cast(Json, dict(row))


def require_same_gpu(device: str | None) -> None:
    """Require the GPU of this task to be of the driver's kind. Raises CuirError U515."""
    found = versions()["device"]
    if found != device:
        message = f"{socket.gethostname()} has a GPU {found}, and the results are of {device}"
        raise CuirError.of("U515", message, hint="measure on a cluster of one kind of GPU")


__all__ = ["measure_request", "require_same_gpu", "spread_over"]
