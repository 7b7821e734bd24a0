"""Which values of a role are one variable: they share registers, others are copied where paths meet.

A loop's value is what it was given at first and what each turn yields, a branch's result what its regions yield, an accumulator what a product adds to. Two of
these are one variable if no value is still needed, or used by a product in flight, when the other one is made; a tile behind a wait is the one before it.
Products take over their accumulators' registers: those come first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from ..ir import ops
from ..ir.walk import inner_first, last
from .in_flight import Ages, InFlight
from .liveness import Liveness, stored

K = TypeVar("K")


@dataclass(frozen=True, eq=False)
class Variable:
    """Values that share registers. `constant`: one value, which can be declared where it is made."""

    members: tuple[SSAValue, ...]
    constant: bool


class Variables:
    """The variables of a role. Holds as long as the role is not changed."""

    def __init__(self, role: Operation):
        body = role.regions[0].block
        self.liveness = Liveness(body)
        self.flight, self.read = InFlight(body), InFlight(body, operands=True)
        self.parent: dict[SSAValue, SSAValue] = {}
        self.members: dict[SSAValue, list[SSAValue]] = {}
        self.defined: dict[SSAValue, frozenset[SSAValue]] = {}  # what is needed when a value is made
        for value, live in self._definitions(body):
            self.parent[value] = value
            self.members[value] = [value]
            self.defined[value] = live
        for pairs in (_taken_over, _loops, _branches, _starts):
            for a, b in pairs(role):
                self._join(a, b)
        variables = {root: Variable(tuple(m), len(m) == 1 and _declared_where_made(m[0])) for root, m in self.members.items()}
        self.of: dict[SSAValue, Variable] = {value: variables[self._root(value)] for value in self.parent}

    # ---- what is made where
    def _definitions(self, block: Block) -> Iterator[tuple[SSAValue, frozenset[SSAValue]]]:
        for argument in block.args:
            if stored(argument):
                yield argument, self._kept(self.liveness.at_start, self.flight.at_start, self.read.at_start, block) - {argument}
        for op in block.ops:
            for region in op.regions:
                yield from self._definitions(region.block)
            for result in op.results:
                if stored(result):
                    yield result, self._kept(self.liveness.after, self.flight.after, self.read.after, op) - _same(result)

    def _kept(
        self, live: Mapping[K, frozenset[SSAValue]], written: Mapping[K, Ages], read: Mapping[K, Ages], where: K
    ) -> frozenset[SSAValue]:
        return live[where] | written[where].keys() | read[where].keys()

    # ---- union
    def _root(self, value: SSAValue) -> SSAValue:
        while self.parent[value] is not value:
            value = self.parent[value]
        return value

    def _join(self, a: SSAValue, b: SSAValue) -> None:
        if a not in self.parent or b not in self.parent or _head(a) or _head(b):
            return
        x, y = self._root(a), self._root(b)
        if x is y or a.type != b.type or self._interfere(self.members[x], self.members[y]):
            return
        self.parent[y] = x
        self.members[x] += self.members.pop(y)

    def _interfere(self, xs: list[SSAValue], ys: list[SSAValue]) -> bool:
        return any(y in self.defined[x] or x in self.defined[y] or _together(x, y) for x in xs for y in ys)


# ---- what should be one variable, most urgent first
def _taken_over(role: Operation) -> Iterator[tuple[SSAValue, SSAValue]]:
    for op in inner_first(role):
        yield from _tied(op)


def _loops(role: Operation) -> Iterator[tuple[SSAValue, SSAValue]]:
    for op in inner_first(role):
        if isinstance(op, ops.Loop):
            yield from zip(op.inner, op.results, strict=True)
            yield from zip(op.inner, last(op.body).values, strict=True)


def _branches(role: Operation) -> Iterator[tuple[SSAValue, SSAValue]]:
    for op in inner_first(role):
        if isinstance(op, ops.Branch):
            for region in (op.then, op.orelse):
                yield from zip(op.results, last(region).values, strict=True)


def _starts(role: Operation) -> Iterator[tuple[SSAValue, SSAValue]]:
    for op in inner_first(role):
        if isinstance(op, ops.Loop):
            yield from zip(op.results, op.carried, strict=True)


def _head(value: SSAValue) -> bool:
    """Whether a value stands in the head of a role or a loop: the number of a worker or a turn, a word of a unit. What a loop carries is set before it."""
    if not isinstance(value, BlockArgument):
        return False
    loop = value.block.parent_op()
    return not isinstance(loop, ops.Loop) or value not in loop.inner


def _declared_where_made(value: SSAValue) -> bool:
    return _head(value) or (isinstance(value.owner, Operation) and not value.owner.regions)


def _tied(op: Operation) -> Iterator[tuple[SSAValue, SSAValue]]:
    """(result, operand) that an operation holds in the same registers: an accumulator, tiles that pass through a wait."""
    if isinstance(op, ops.Perform) and op.results:
        if op.entry.effects.drains:
            yield from zip(op.results, op.arguments, strict=True)
        elif op.entry.effects.group and "c" in op.args:
            yield op.results[0], op.args["c"]


def _same(value: SSAValue) -> set[SSAValue]:
    """A value, and the tiles before the waits that it passed through: making it writes nothing over them."""
    alike = {value}
    while isinstance(op := value.owner, ops.Perform) and op.entry.effects.drains:
        value = op.arguments[value.index]  # type: ignore[attr-defined]
        alike.add(value)
    return alike


def _together(x: SSAValue, y: SSAValue) -> bool:
    """Whether two values are made at the same moment."""
    if isinstance(x, BlockArgument) and isinstance(y, BlockArgument):
        return x.block is y.block
    return x.owner is y.owner and isinstance(x.owner, Operation)
