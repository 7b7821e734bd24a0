"""Running of a campaign: results of a journal first, then of an executor; all in the order of the tasks."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import Protocol

from .tasks import Result, Task


class Executor(Protocol):
    """What runs tasks: processes of this machine, or a cluster."""

    def describe(self) -> str:
        """Return where tasks run, for people."""

    def run(self, tasks: Sequence[Task]) -> Generator[Result]:
        """Yield the result of each task as it finishes, in any order.

        Closing the iterator ends the tasks that run.
        """


def run_tasks(tasks: Sequence[Task], executor: Executor, take: Callable[[Result], None] = lambda result: None) -> list[Result]:
    """Run tasks; return their results in the order of the tasks.

    Tasks with the same key run once. A task that raises ends the others only if `take` raises.

    take: called with each result as it comes, in this process and in no fixed order.
    """
    results: dict[str, Result] = {}
    distinct = list({task.key: task for task in tasks}.values())
    with closing(executor.run(distinct)) as finished:
        for result in finished:
            if result.key not in results:  # a task whose worker was lost may finish twice
                results[result.key] = result
                take(result)
    return [results[task.key] for task in tasks]


__all__ = ["Executor", "run_tasks"]
