"""Runs of a verification as tasks of a campaign, with what they recorded about the kernels.

A task opens the same verification in its process, and runs some jobs of a phase. A job that raised is left to the
caller, which meets the fault in the usual order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..campaigns.campaign import Executor, run_campaign
from ..campaigns.journal import Journal
from ..campaigns.tasks import Json, Result, Task
from ..interp.interpreted_launch import Entered, LoopCounts
from ..text.diagnostics import CuirError
from .side_processes import Job, Recorder

JOBS_OF_TASK = (1, 4)  # of schedules, whose problems run many times, and of numbers


@dataclass(frozen=True)
class TaskPlan:
    """Plan that turns the runs of a verification into tasks.

    Attributes:
        make: Returns the task of a phase and the numbers of its jobs.
        executor: Where they run.
        journal: Results of earlier tasks.
        progress: Called with the share of the tasks that are done.
    """

    make: Callable[[int, Sequence[int]], Task]
    executor: Executor
    journal: Journal
    progress: Callable[[int, int], None] = lambda count, total: None


class PlaceError(Exception):
    """Error of the place where tasks run, which is not one of the kernel.

    Attributes:
        error: What to tell.
    """

    def __init__(self, error: CuirError):
        super().__init__(str(error))
        self.error = error


class TaskRuns:
    """Results of tasks for the stages of a verification, in the place of `SideProcesses`.

    listing: what runs recorded that listed the jobs of the second phase; it is merged with that phase.
    """

    def __init__(self, phases: Sequence[Sequence[Job]], recorder: Recorder, plan: TaskPlan, listing: object = None):
        self.listing = listing
        self.sizes, self.recorder, self.plan = [len(p) for p in phases], recorder, plan
        self.sides: list[Any] = []  # no forked processes
        self.done: list[Result] | None = None

    def __enter__(self) -> TaskRuns:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def results(self, phase: int) -> list[Any]:
        """Return the results of a phase, None for each job that the caller is to run; merge what was recorded.

        Raises PlaceError if tasks cannot run.
        """
        groups = [(p, jobs) for p, size in enumerate(self.sizes) for jobs in split_jobs(size, JOBS_OF_TASK[p])]
        if self.done is None:
            plan, own = self.plan, self.recorder.export()
            try:
                self.done = run_campaign([plan.make(p, jobs) for p, jobs in groups], plan.executor, plan.journal, plan.progress)
            except CuirError as error:
                raise PlaceError(error) from None
            self.recorder.forget()  # what tasks in this process recorded
            self.recorder.merge(own)
        if phase == 1 and self.listing is not None:
            self.recorder.merge(self.listing)
        by_job: list[Any] = [None] * self.sizes[phase]
        for (of_phase, jobs), result in zip(groups, self.done, strict=True):
            if of_phase == phase and isinstance(result.value, Mapping):
                value: Mapping[str, Any] = result.value
                self.recorder.merge(read_state(value["state"]))
                for job, found in zip(jobs, value["results"], strict=True):
                    by_job[job] = found
        return by_job


def split_jobs(count: int, most: int) -> list[list[int]]:
    """Return the numbers of jobs in groups of at most `most`."""
    return [list(range(first, min(first + most, count))) for first in range(0, count, most)]


def write_state(state: tuple[Sequence[int], Sequence[Entered]]) -> Json:
    """Return what `RunRecorder.export` returns, as JSON."""
    sides, kernels = state
    entered: list[Json] = []
    for kernel in kernels:
        turns: dict[str, Json] = {str(n): [t.least, t.most, t.total, sorted(t.counts)] for n, t in sorted(kernel.turns.items())}
        entered.append([sorted(kernel.blocks), turns])
    return [list(sides), entered]


def read_state(data: Any) -> tuple[list[int], list[Entered]]:
    """Return a state that `write_state` wrote."""
    sides, kernels = data
    return sides, [
        Entered(set(blocks), {int(n): LoopCounts(least, most, total, set(counts)) for n, (least, most, total, counts) in turns.items()})
        for blocks, turns in kernels
    ]


__all__ = ["JOBS_OF_TASK", "PlaceError", "TaskPlan", "TaskRuns", "read_state", "split_jobs", "write_state"]
