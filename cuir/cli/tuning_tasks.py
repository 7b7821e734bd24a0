"""Tasks of `cuir tune`: settings that one GPU of a cluster checks, or times in turns, by a process of its own there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, cast

from ..campaigns.campaign import Executor
from ..campaigns.tasks import Json, make_task
from ..checking.const_defaults import PlainConsts
from ..performance.search.candidate_runs import RemoteDevice
from ..performance.search.search import FINALISTS, Bench, InTurns
from ..performance.search.space import Consts, from_plain, plain
from ..performance.timing.worker import Worker
from .bench_tasks import require_same_gpu

CHECKED, TIMED = 4, max(8, FINALISTS)  # settings of a task; all finalists are timed on one GPU


@dataclass(frozen=True)
class ClusterBench(Bench):
    """GPUs of a cluster, which are of one kind.

    Attributes:
        executor: Where tasks run.
        job: Fields of a request that identify the problem.
        device: Name of the GPU.
    """

    executor: Executor
    job: Mapping[str, object]
    device: str | None

    def check(self, settings: Sequence[Consts]) -> Iterator[tuple[int, tuple[str, str]]]:
        """Check settings, some in a task."""
        yield from self._run(check_settings, settings, CHECKED)

    def time(self, settings: Sequence[Consts], rounds: int) -> Iterator[tuple[int, float]]:
        """Time settings, some in turns on one GPU."""
        yield from self._run(time_settings, settings, TIMED, rounds)

    def _run(self, function: Any, settings: Sequence[Consts], most: int, *more: object) -> Iterator[tuple[int, Any]]:
        groups = [range(n, min(n + most, len(settings))) for n in range(0, len(settings), most)]
        tasks = [make_task(function, self.job, [plain(settings[i]) for i in g], self.device, *more, gpus=1) for g in groups]
        of_key = {task.key: group for task, group in zip(tasks, groups, strict=True)}
        with closing(self.executor.run(tasks)) as results:
            for result in results:
                if result.error is not None:
                    raise result.error
                for place, found in cast("Sequence[tuple[int, Any]]", result.value):
                    yield of_key[result.key][place], found


def check_settings(job: Mapping[str, object], settings: Sequence[PlainConsts], device: str | None) -> Json:
    """Check settings on the GPU of this task. Raises CuirError U515 if the GPU is another one."""
    with _open(job, device) as bench:
        return [[index, list(found)] for index, found in bench.check([from_plain(s) for s in settings])]


def time_settings(job: Mapping[str, object], settings: Sequence[PlainConsts], device: str | None, rounds: int) -> Json:
    """Time settings in turns on the GPU of this task. Raises CuirError U515 if the GPU is another one."""
    with _open(job, device) as bench:
        return [[index, found] for index, found in bench.time([from_plain(s) for s in settings], rounds)]


@contextmanager
def _open(job: Mapping[str, object], device: str | None) -> Iterator[InTurns]:
    """Return a context with the GPU, in a process that a kernel which hangs takes with it."""
    from .worker_process import COMMAND

    require_same_gpu(device)
    with Worker(COMMAND) as worker:
        yield InTurns(RemoteDevice(worker, job))


__all__ = ["ClusterBench", "check_settings", "time_settings"]
