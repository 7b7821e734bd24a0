"""Functions that the tests of campaigns run as tasks."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Generator, Sequence
from pathlib import Path

from cuir.campaigns.tasks import Json, Result, Task, make_task, run_task
from cuir.text.diagnostics import CuirError


def square(x: int) -> Json:
    return {"x": x, "square": x * x}


def work(x: int, milliseconds: int) -> Json:
    end = time.process_time() + milliseconds / 1000
    while time.process_time() < end:
        pass
    return square(x)


def fail(kind: str) -> Json:
    if kind == "cuir":
        raise CuirError.of("U101", "no such program", hint="name another one")

    class Unknown(Exception):
        """Class that no other process can import."""

    raise Unknown("lost")


def tell_gpu() -> Json:
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def tell_threads() -> Json:
    import torch

    return torch.get_num_threads()


def die_at_first(folder: str, times: int) -> Json:
    """End the process the first few times; one file a time."""
    tried = len(list(Path(folder).iterdir()))
    if tried < times:
        (Path(folder) / str(tried)).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return tried


def make_squares(count: int) -> list[Task]:
    return [make_task(square, x) for x in range(count)]


class Shuffled:
    """Executor that gives results in an order of the caller's, some of them twice."""

    def __init__(self, order: Sequence[int], stop: int | None = None):
        self.order, self.stop = order, stop
        self.ran: list[str] = []

    def describe(self) -> str:
        return "a test"

    def run(self, tasks: Sequence[Task]) -> Generator[Result]:
        for count, number in enumerate(self.order):
            if count == self.stop:
                raise KeyboardInterrupt
            if number < len(tasks):
                self.ran.append(tasks[number].key)
                yield run_task(tasks[number])
