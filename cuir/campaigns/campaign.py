"""Running of a campaign: results of a journal first, then of an executor; all in the order of the tasks."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import Protocol

from .journal import KEY, Journal
from .tasks import Result, Task


class Executor(Protocol):
    """Runner of tasks: processes of this machine, or a cluster."""

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


def run_campaign(
    tasks: Sequence[Task], executor: Executor, journal: Journal, progress: Callable[[int, int], None] = lambda count, total: None
) -> list[Result]:
    """Run the tasks that a journal has no result of; return the results in the order of the tasks.

    Errors are not kept: the next campaign runs such tasks again. progress: called with the numbers of finished and of
    all tasks. Raises CuirError U108 if the journal cannot be written.
    """
    kept = {key: Result(key, row["value"], seconds=row["seconds"]) for key, row in journal.rows.items()}
    todo = [task for task in tasks if task.key not in kept]
    count = len(tasks) - len(todo)
    progress(count, len(tasks))

    def take(result: Result) -> None:
        nonlocal count
        count += 1
        if result.error is None:
            journal.write({KEY: result.key, "seconds": round(result.seconds, 4), "value": result.value})
        progress(count, len(tasks))

    found = {**kept, **{result.key: result for result in run_tasks(todo, executor, take)}}
    journal.sort([task.key for task in tasks])
    return [found[task.key] for task in tasks]


__all__ = ["Executor", "run_campaign", "run_tasks"]
