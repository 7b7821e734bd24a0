"""Tasks in processes of this machine.

Each process takes one task after another through a pipe, so that a process that dies names its task: it runs again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait

from ..text.diagnostics import CuirError
from .tasks import Result, Task, TaskError, run_task

DEATHS = 3  # of processes at one task, before it counts as failed
_GUARD = "a script that starts tasks needs `if __name__ == '__main__':`"
_context = get_context("spawn")


@dataclass(frozen=True)
class LocalExecutor:
    """Executor in processes of this machine.

    Attributes:
        jobs: Number of processes; 1 runs the tasks in the calling process.
        gpus: Number of GPUs. A task for a GPU sees one of them alone, and runs in a process of its own.
    """

    jobs: int = 1
    gpus: int = 0

    def describe(self) -> str:
        """Return where tasks run, for people."""
        return f"{self.jobs} processes" if self.jobs > 1 else "this process"

    def run(self, tasks: Sequence[Task]) -> Generator[Result]:
        """Yield the result of each task as it finishes; see `Executor.run`.

        Raises CuirError U501 for a task that needs more GPUs than there are.
        """
        if any(task.gpus > self.gpus for task in tasks):
            raise CuirError.of("U501", "tasks of this campaign need a GPU, and this machine has none", hint="--on ray:ADDRESS")
        if self.jobs == 1 and not any(task.gpus for task in tasks):
            yield from map(run_task, tasks)
        else:
            yield from self._run_in_processes(tasks)

    def _run_in_processes(self, tasks: Sequence[Task]) -> Generator[Result]:
        on_gpu, plain = deque(t for t in tasks if t.gpus), deque(t for t in tasks if not t.gpus)
        slots: list[tuple[deque[Task], str | None]]
        slots = [(on_gpu, str(number)) for number in range(min(self.gpus, len(on_gpu)))]
        slots += [(plain, None) for _ in range(min(self.jobs, len(plain)))]
        deaths: dict[str, int] = {}
        workers: dict[Connection, _Worker] = {}

        def start(queue: deque[Task], gpu: str | None) -> None:
            if queue:
                worker = _Worker(queue, gpu)
                workers[worker.pipe] = worker
                worker.give()

        try:
            for queue, gpu in slots:
                start(queue, gpu)
            while workers:
                for pipe in wait(list(workers)):
                    assert isinstance(pipe, Connection)
                    worker = workers[pipe]
                    task = worker.task
                    try:
                        result = pipe.recv()
                    except (EOFError, ConnectionResetError):
                        how = worker.end(has_ended=True)
                        del workers[pipe]
                        if not worker.ready:
                            raise TaskError(f"a process for tasks ended {how} before its first task: {_GUARD}") from None
                        if task is not None:
                            deaths[task.key] = deaths.get(task.key, 0) + 1
                            if deaths[task.key] < DEATHS:
                                worker.queue.appendleft(task)
                            else:
                                yield Result(task.key, error=TaskError(f"its process died {DEATHS} times, {how}"))
                        start(worker.queue, worker.gpu)
                        continue
                    if not worker.ready:
                        worker.ready = True
                        continue
                    yield result
                    if not worker.give():
                        del workers[pipe]
                        worker.end()
        finally:
            for worker in workers.values():
                worker.end()


class _Worker:
    """A process, the pipe to it, and the task that it runs.

    gpu: number of the only GPU that it sees. ready: whether it has started.
    """

    def __init__(self, queue: deque[Task], gpu: str | None):
        self.queue, self.gpu = queue, gpu
        self.task: Task | None = None
        self.ready = False
        self.pipe, far_end = _context.Pipe()
        self.process = _context.Process(target=_serve, args=(far_end, gpu))
        with block_interrupts():
            self.process.start()
        far_end.close()

    def give(self) -> bool:
        """Send the next task; return False if none is left."""
        self.task = self.queue.popleft() if self.queue else None
        if self.task is None:
            return False
        with contextlib.suppress(BrokenPipeError):  # `wait` reports the end of the process
            self.pipe.send(self.task)
        return True

    def end(self, has_ended: bool = False) -> str:
        """Kill the process, unless it has ended; return how."""
        if not has_ended:
            self.process.kill()
        self.process.join()
        self.pipe.close()
        code = self.process.exitcode or 0
        return f"by signal {-code}" if code < 0 else f"with code {code}"


@contextmanager
def block_interrupts() -> Iterator[None]:
    """Block SIGINT, also in processes that start meanwhile.

    They receive it when they are set up, and end then without a traceback of the imports they were in.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def set_up_worker() -> None:
    """Set up a process that runs tasks: one thread, and an end without a word at Ctrl-C."""
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(130))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    use_one_thread()


def use_one_thread() -> None:
    """Run PyTorch's operations in one thread: as many tasks as cores run side by side."""
    os.environ["OMP_NUM_THREADS"] = "1"  # read when PyTorch is imported
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


def _serve(pipe: Connection, gpu: str | None) -> None:
    """Run tasks until the other side is gone."""
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    set_up_worker()
    with contextlib.suppress(EOFError, ConnectionResetError, BrokenPipeError):
        pipe.send(None)
        while True:
            pipe.send(run_task(pipe.recv()))


__all__ = ["LocalExecutor", "block_interrupts", "set_up_worker", "use_one_thread"]
