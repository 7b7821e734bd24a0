"""From an execution with faults to a schedule that shows one in few steps. Owns what is left out."""

from __future__ import annotations

import time
from dataclasses import dataclass

from .execution import Execution, Fault
from .skeleton import Skeleton


@dataclass(frozen=True)
class Short:
    """A fault, and the agents whose steps lead to it. least: no schedule of fewer steps shows any fault; otherwise no step of this one can be left out."""

    fault: Fault
    schedule: tuple[int, ...]
    least: bool


def shortest(run: Execution, seconds: float) -> Short:
    """The steps that one fault of an execution needs; then, for so many seconds, all schedules that are shorter."""
    fault, schedule = smallest(run)
    stop = time.perf_counter() + seconds
    return _shorter(run.skeleton, len(schedule), stop) or Short(fault, schedule, False)


def smallest(run: Execution) -> tuple[Fault, tuple[int, ...]]:
    """The fault of an execution that takes the fewest steps, and these steps. Among them alone another one may show earlier: then that one."""
    while True:
        fault = min(run.faults, key=lambda f: f.steps.bit_count())
        steps = tuple(agent for s, agent in enumerate(run.trace) if fault.steps >> s & 1)
        if len(steps) == len(run.trace):
            return fault, steps
        again = _done(run.skeleton, steps)
        if not again.faults:
            return fault, steps
        run = again


def _done(skeleton: Skeleton, agents: tuple[int, ...]) -> Execution:
    run = Execution(skeleton)
    for agent in agents:
        run.step(agent)
    return run


def _shorter(skeleton: Skeleton, most: int, stop: float) -> Short | None:
    """The shortest failing schedule of at most `most` steps, breadth first; None if the time was too short to tell.

    Schedules that lead to the same positions, with the same arrivals in the same phases, lead to the same state and are followed once.
    """
    level: dict[object, tuple[int, ...]] = {(): ()}
    for depth in range(most + 1):
        following: dict[object, tuple[int, ...]] = {}
        for path in level.values():
            run = _done(skeleton, path)
            if not run.faults and not run.agents():
                run.end()
            if run.faults:
                return Short(run.faults[0], path, True)
            if depth == most:
                continue
            for agent in run.agents():
                after = _done(skeleton, (*path, agent))
                following.setdefault(after.state(), (*path, agent))
            if time.perf_counter() > stop:
                return None
        level = following
    return None
