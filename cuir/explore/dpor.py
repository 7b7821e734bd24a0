"""Dynamic partial-order reduction: choose the executions of a skeleton that are run.

One execution is run of each class of executions that differ in which arrival counts in which phase. The algorithm has
source sets and sleep sets (Abdulla, Aronis, Jonsson, Sagonas: Optimal dynamic partial order reduction, POPL 2014).
Two steps that arrive at one barrier in neighbouring phases, and that nothing else orders, are a conflict: the later one
may as well go first. Without conflicts the one execution stands for all schedules; for each conflict the execution in
reversed order is explored too. Sleep sets prevent that a class is completed twice.

Why one execution without a fault and a conflict stands for all schedules, whatever the size of the launch: take the
first step at which another execution differs. Everything that this step waits for has happened in both. Phases only
grow, so a wait that could return still can; a wait that is a lap behind would be a fault in the first execution, too.
An arrival is ordered after all arrivals of the previous phase, so it counts in the same phase.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from .execution import Execution
from .skeleton import Skeleton

Progress = Callable[["Counts"], None]


@dataclass
class Counts:
    """The amount explored so far."""

    states: int = 0
    transitions: int = 0
    classes: int = 0  # executions that differ in more than the order of independent steps

    def __iadd__(self, other: Counts) -> Counts:
        self.states, self.transitions, self.classes = (
            self.states + other.states,
            self.transitions + other.transitions,
            self.classes + other.classes,
        )
        return self


@dataclass
class Budget:
    """Limits of an exploration; None: no limit."""

    classes: int | None = None
    seconds: float | None = None
    begin: float = field(default_factory=time.perf_counter)

    def is_spent(self, counts: Counts) -> bool:
        """Return whether the limit of classes or seconds is reached."""
        return (self.classes is not None and counts.classes >= self.classes) or (
            self.seconds is not None and time.perf_counter() - self.begin > self.seconds
        )


@dataclass(slots=True)
class _Node:
    """A state on the current path: the agent chosen there, agents to be tried, and sleeping agents."""

    chosen: int
    todo: set[int]
    sleep: set[int]


@dataclass
class SearchResult:
    """Result of the exploration of one cluster."""

    counts: Counts
    complete: bool = True
    faulty: Execution | None = None  # an execution with faults


def search(skeleton: Skeleton, budget: Budget, progress: Progress = lambda counts: None) -> SearchResult:
    """Explore until a fault is found, all is explored, or the budget is spent."""
    counts = Counts(states=1)
    path: list[_Node] = []
    while True:
        run, fresh = Execution(skeleton), max(0, len(path) - 1)
        asleep: set[int] = set()
        for depth, node in enumerate(path):
            if depth == fresh:
                asleep = {q for q in node.sleep if q != node.chosen and run.commute(node.chosen, q)}
                counts.states, counts.transitions = counts.states + 1, counts.transitions + 1
            run.step(node.chosen)
        _extend(run, path, asleep, counts)
        if run.faults:
            return SearchResult(counts, True, run)
        for earlier, later in run.conflicts:
            if later >= fresh:
                _reverse(run, path, earlier, later)
        progress(counts)
        while path:
            node = path[-1]
            node.sleep.add(node.chosen)
            remaining = node.todo - node.sleep
            if remaining:
                node.chosen = min(remaining)
                break
            path.pop()
        if not path:
            return SearchResult(counts)
        if budget.is_spent(counts):
            return SearchResult(counts, complete=False)


def _extend(run: Execution, path: list[_Node], asleep: set[int], counts: Counts) -> None:
    """Run to the end, each agent as far as it can; append the states on the way to the path.

    Stops where only sleeping agents could go on.
    """
    agent = 0
    while not run.stopped:
        if agent in asleep or not run.is_enabled(agent):
            able = run.agents()
            free = [a for a in able if a not in asleep]
            if not free:
                if not able:
                    run.end()
                    counts.classes += 1
                return
            agent = free[0]
        path.append(_Node(agent, {agent}, set(asleep)))
        asleep = {q for q in asleep if run.commute(agent, q)}
        run.step(agent)
        counts.states, counts.transitions = counts.states + 1, counts.transitions + 1


def _reverse(run: Execution, path: list[_Node], earlier: int, later: int) -> None:
    """Schedule `later` to be tried before `earlier`: add an agent that can begin the way there."""
    node, bit = path[earlier], 1 << earlier
    prefix = [s for s in range(earlier + 1, later) if not run.past[s] & bit] + [later]
    begun = 0
    first: set[int] = set()
    visited: set[int] = set()
    for s in prefix:
        agent = run.trace[s]
        if agent not in visited and not run.past[s] & begun:
            first.add(agent)
        visited.add(agent)
        begun |= 1 << s
    if not first & node.todo:
        node.todo.add(run.trace[prefix[0]])
