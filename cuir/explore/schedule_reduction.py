"""Reduction of an execution with faults to a schedule of few steps that shows one."""

from __future__ import annotations

import time
from dataclasses import dataclass

from .execution import Execution, Fault
from .skeleton import Skeleton


@dataclass(frozen=True)
class Short:
    """A fault, and the agents whose steps lead to it.

    least: no schedule of fewer steps shows any fault; otherwise no step of this one can be omitted.
    """

    fault: Fault
    schedule: tuple[int, ...]
    least: bool


def find_shortest(run: Execution, seconds: float) -> Short:
    """Reduce to the steps that one fault needs; then search, for so many seconds, all shorter schedules."""
    fault, schedule = find_smallest(run)
    stop = time.perf_counter() + seconds
    return _search_shorter(run.skeleton, len(schedule), stop) or Short(fault, schedule, False)


def find_smallest(run: Execution) -> tuple[Fault, tuple[int, ...]]:
    """Return the fault with the fewest steps before it, and these steps as a schedule.

    If the reduced schedule shows another fault earlier, that fault is returned.
    """
    while True:
        fault = min(run.faults, key=lambda f: f.steps.bit_count())
        steps = tuple(agent for s, agent in enumerate(run.trace) if fault.steps >> s & 1)
        if len(steps) == len(run.trace):
            return fault, steps
        repeated = _execute(run.skeleton, steps)
        if not repeated.faults:
            return fault, steps
        run = repeated


def _execute(skeleton: Skeleton, agents: tuple[int, ...]) -> Execution:
    run = Execution(skeleton)
    for agent in agents:
        run.step(agent)
    return run


def _search_shorter(skeleton: Skeleton, most: int, stop: float) -> Short | None:
    """Search the shortest failing schedule of at most `most` steps, breadth first; None if time runs out.

    Schedules that lead to the same positions, with the same arrivals in the same phases, lead to the same state and are
    followed once.
    """
    level: dict[object, tuple[int, ...]] = {(): ()}
    for depth in range(most + 1):
        next_level: dict[object, tuple[int, ...]] = {}
        for path in level.values():
            run = _execute(skeleton, path)
            if not run.faults and not run.agents():
                run.end()
            if run.faults:
                return Short(run.faults[0], path, True)
            if depth == most:
                continue
            for agent in run.agents():
                after = _execute(skeleton, (*path, agent))
                next_level.setdefault(after.state(), (*path, agent))
            if time.perf_counter() > stop:
                return None
        level = next_level
    return None
