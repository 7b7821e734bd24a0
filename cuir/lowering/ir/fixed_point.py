"""Solvers of data flow on the tile IR: branches are joined, loops are visited to a fixed point.

`Forward` and `Backward` have a state at each point of a block. `ValueFlow` has a fact for each value, computed from the
facts of its sources. An analysis gives the lattice (a join, equality, a widening where chains are long) and the
transfer functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Generic, TypeVar

from xdsl.ir import Block, Operation, SSAValue

from . import machine_ops as machine
from . import ops
from .ir_walk import last, operations

State = TypeVar("State")
Fact = TypeVar("Fact")


class _Flow(Generic[State]):
    """States at the points of a block.

    Attributes:
        before: The state before each operation, of forward flow alone.
        after: The state after each operation.
        at_start: The state at the start of each block.
    """

    def __init__(self) -> None:
        self.before: dict[Operation, State] = {}
        self.after: dict[Operation, State] = {}
        self.at_start: dict[Block, State] = {}

    def join(self, a: State, b: State) -> State:
        """Join the states of two paths."""
        raise NotImplementedError

    def transfer(self, op: Operation, state: State) -> State:
        """Return the state beyond an operation, whose regions are visited apart."""
        raise NotImplementedError


class Forward(_Flow[State]):
    """States that follow execution; an operation's own effects come before its regions."""

    def run(self, block: Block, state: State) -> State:
        """Return the state at the end of a block that starts in a state."""
        self.at_start[block] = state
        for op in block.ops:
            self.before[op] = state
            state = self.visit(op, state)
            self.after[op] = state
        return state

    def visit(self, op: Operation, state: State) -> State:
        """Return the state after an operation and its regions."""
        state = self.transfer(op, state)
        if not op.regions:
            return state
        if isinstance(op, ops.Branch):
            return reduce(self.join, (self.rename(self.run(r.block, state), last(r).values, op.results) for r in op.regions))
        if isinstance(op, ops.Loop):
            start = head = self.rename(state, op.carried, op.inner)
            while True:
                end = self.rename(self.run(op.body.block, head), last(op.body).values, op.inner)
                joined = self.join(head, end)
                if joined == head:
                    return self.rename(self.join(start, end), op.inner, op.results)
                head = joined
        for region in op.regions:
            self.run(region.block, state)
        return state

    def rename(self, state: State, values: Sequence[SSAValue], into: Sequence[SSAValue]) -> State:
        """Rename values that flow into others, such as the arguments and results of a loop."""
        return state


class Backward(_Flow[State]):
    """States that go against execution; an operation's own effects come after its regions on this way."""

    def run(self, block: Block, state: State) -> State:
        """Return the state at the start of a block that ends in a state."""
        for op in reversed(operations(block)):
            self.after[op] = state
            state = self.visit(op, state)
        self.at_start[block] = state
        return state

    def visit(self, op: Operation, state: State) -> State:
        """Return the state before an operation and its regions."""
        if not op.regions:
            return self.transfer(op, state)
        state = self.enter(op, state)
        if isinstance(op, ops.Branch):
            state = reduce(self.join, (self.run(r.block, state) for r in op.regions))
        elif isinstance(op, (ops.Loop, machine.HandOut)):
            block = op.body.block
            while (joined := self.join(state, self.drop(block.args, self.run(block, state)))) != state:
                state = joined
        return self.transfer(op, state)

    def enter(self, op: Operation, state: State) -> State:
        """Return the state at the end of an operation's regions, from that after it."""
        return state

    def drop(self, values: Sequence[SSAValue], state: State) -> State:
        """Return a state without the arguments of a block, at its start."""
        return state


Rule = Callable[[Sequence[Fact | None]], Fact | None]  # from the facts of a value's sources; None: not reached yet


@dataclass(eq=False, slots=True)
class _Step(Generic[Fact]):
    """A value, and the rule that computes its fact from its sources.

    `due`: a source has changed since the step was last taken.
    """

    value: SSAValue
    rule: Rule[Fact]
    sources: Sequence[SSAValue]
    carried: bool
    due: bool = True
    moves: int = 0  # number of changes of a carried value


class ValueFlow(Generic[Fact]):
    """Facts of values: rounds over the steps, in the order in which they were put, until none is due.

    Args:
        join: Joins the fact of a value with a new one.
        widen: Bounds a carried value's new fact, given the old one, after `rounds` changes.
        rounds: The number of changes of a carried value before it is widened.
    """

    def __init__(self, join: Callable[[Fact, Fact], Fact], widen: Callable[[Fact, Fact], Fact] | None = None, rounds: int = 0):
        self.facts: dict[SSAValue, Fact] = {}  # without an entry: not reached yet
        self._join, self._widen, self._rounds = join, widen, rounds
        self._steps: list[_Step[Fact]] = []  # put since `solve`
        self._described = set[SSAValue]()
        self._readers: dict[SSAValue, list[_Step[Fact]]] = {}

    def put(self, value: SSAValue, rule: Rule[Fact], sources: Sequence[SSAValue] = (), carried: bool = False) -> None:
        """Add the step of a value."""
        step = _Step(value, rule, sources, carried)
        self._steps.append(step)
        for source in sources:
            self._readers.setdefault(source, []).append(step)

    def reach(
        self,
        roots: Iterable[SSAValue],
        describe: Callable[[SSAValue], tuple[Rule[Fact], Sequence[SSAValue]]],
        carries: Callable[[SSAValue], bool] = lambda value: True,
    ) -> None:
        """Add the steps of values and all that they are computed from, sources first, but for those added before.

        Args:
            roots: The values.
            describe: Returns the rule of a value, and its sources.
            carries: Returns whether a value is one that is widened.
        """
        described = dict[SSAValue, tuple[Rule[Fact], Sequence[SSAValue]]]()
        worklist = [(root, False) for root in roots]
        while worklist:
            value, is_done = worklist.pop()
            if is_done:
                self.put(value, *described[value], carries(value))
            elif value not in self._described:
                self._described.add(value)
                described[value] = describe(value)
                worklist.append((value, True))
                worklist += [(source, False) for source in described[value][1]]

    def solve(self) -> dict[SSAValue, Fact]:
        """Return the facts of all values that are reached; steps that were solved before do not depend on later ones."""
        steps, self._steps = self._steps, []
        while any(step.due for step in steps):
            for step in steps:
                if step.due:
                    self._take(step)
        return self.facts

    def _take(self, step: _Step[Fact]) -> None:
        """Compute the fact of a step's value anew, and mark its readers due if it changed."""
        step.due = False
        update = step.rule([self.facts.get(s) for s in step.sources])
        if update is None:
            return
        old = self.facts.get(step.value)
        if old is not None:
            if update == old or (update := self._join(update, old)) == old:
                return
            if step.carried and self._widen is not None:
                step.moves += 1
                if step.moves > self._rounds:
                    update = self._widen(old, update)
        self.facts[step.value] = update
        for reader in self._readers.get(step.value, ()):
            reader.due = True


__all__ = ["Backward", "Forward", "Rule", "ValueFlow"]
