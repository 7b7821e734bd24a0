"""Solvers of data flow on the tile IR: branches are joined, loops are visited to a fixed point.

`Forward` and `Backward` have a state at each point of a block; `checking/fact_solver.py` solves for facts of values. An
analysis gives the lattice (a join and equality) and the transfer functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Generic, TypeVar

from xdsl.ir import Block, Operation, SSAValue

from . import machine_ops as machine
from . import ops
from .ir_walk import last, operations

State = TypeVar("State")


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


__all__ = ["Backward", "Forward"]
