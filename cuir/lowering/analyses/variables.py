"""Variables of a role: values that share registers; others are copied where paths meet.

A loop's value is its initial value and that which each turn yields, a branch's result is what its regions yield, and an
accumulator is what a product adds to. Two of these are one variable if no value is still live, or used by a product in
flight, when the other one is defined; a tile after a wait, or an exchange, is the one before it. Products take over their
accumulators' registers: those are joined first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeGuard, TypeVar

from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from ..ir import ops
from ..ir.exchanges import TakeColumns
from ..ir.in_flight import Ages, InFlight
from ..ir.ir_walk import every, inner_first, last
from .liveness import Liveness, is_stored

K = TypeVar("K")


@dataclass(frozen=True, eq=False)
class Variable:
    """Values that share registers.

    `constant`: there is one value, which can be declared at its definition.
    """

    members: tuple[SSAValue, ...]
    constant: bool


class Variables:
    """The variables of a role, valid until the role changes."""

    def __init__(self, role: Operation):
        body = role.regions[0].block
        self.liveness = Liveness(body)
        self.flight, self.read = InFlight(body), InFlight(body, operands=True)
        self.parent: dict[SSAValue, SSAValue] = {}
        self.members: dict[SSAValue, list[SSAValue]] = {}
        self.defined: dict[SSAValue, frozenset[SSAValue]] = {}  # values that are live when a value is defined
        for value, live in self._iterate_definitions(body):
            self.parent[value] = value
            self.members[value] = [value]
            self.defined[value] = live
        for pairs in (_iterate_accumulators, _iterate_loops, _iterate_branches, _iterate_initial_values):
            for a, b in pairs(role):
                self._join(a, b)
        variables = {root: Variable(tuple(m), len(m) == 1 and _is_declared_at_definition(m[0])) for root, m in self.members.items()}
        self.of: dict[SSAValue, Variable] = {value: variables[self._find_root(value)] for value in self.parent}

    # ---- definitions
    def _iterate_definitions(self, block: Block) -> Iterator[tuple[SSAValue, frozenset[SSAValue]]]:
        for argument in block.args:
            if is_stored(argument):
                yield argument, self._collect_live(self.liveness.at_start, self.flight.at_start, self.read.at_start, block)
        for op in block.ops:
            for region in op.regions:
                yield from self._iterate_definitions(region.block)
            for result in op.results:
                if is_stored(result):
                    live = self._collect_live(self.liveness.after, self.flight.after, self.read.after, op)
                    yield result, live - _collect_same_registers(result) if _is_wait(op) else live

    def _collect_live(
        self, live: Mapping[K, frozenset[SSAValue]], written: Mapping[K, Ages], read: Mapping[K, Ages], key: K
    ) -> frozenset[SSAValue]:
        return live[key].union(written[key], read[key]) if written[key] or read[key] else live[key]

    # ---- union
    def _find_root(self, value: SSAValue) -> SSAValue:
        while self.parent[value] is not value:
            value = self.parent[value]
        return value

    def _join(self, a: SSAValue, b: SSAValue) -> None:
        if a not in self.parent or b not in self.parent or _is_head_argument(a) or _is_head_argument(b):
            return
        x, y = self._find_root(a), self._find_root(b)
        if x is y or a.type != b.type or self._interfere(self.members[x], self.members[y]):
            return
        self.parent[y] = x
        self.members[x] += self.members.pop(y)

    def _interfere(self, xs: list[SSAValue], ys: list[SSAValue]) -> bool:
        return any(y in self.defined[x] or x in self.defined[y] or _are_defined_together(x, y) for x in xs for y in ys)


# ---- pairs to join, most urgent first
def _iterate_accumulators(role: Operation) -> Iterator[tuple[SSAValue, SSAValue]]:
    for op in inner_first(role):
        yield from _iterate_tied(op)


def _iterate_loops(role: Operation) -> Iterator[tuple[SSAValue, SSAValue]]:
    for op in inner_first(role):
        if isinstance(op, ops.Loop):
            yield from zip(op.inner, op.results, strict=True)
            yield from zip(op.inner, last(op.body).values, strict=True)


def _iterate_branches(role: Operation) -> Iterator[tuple[SSAValue, SSAValue]]:
    for op in inner_first(role):
        if isinstance(op, ops.Branch):
            for region in (op.then, op.orelse):
                yield from zip(op.results, last(region).values, strict=True)


def _iterate_initial_values(role: Operation) -> Iterator[tuple[SSAValue, SSAValue]]:
    for op in inner_first(role):
        if isinstance(op, ops.Loop):
            yield from zip(op.results, op.carried, strict=True)


def _is_head_argument(value: SSAValue) -> bool:
    """Return whether a value is an argument of a role or a loop, other than a carried value.

    These are the index of a worker or a turn, and words of a work item. Carried values are set before the loop.
    """
    if not isinstance(value, BlockArgument):
        return False
    loop = value.block.parent_op()
    return not isinstance(loop, ops.Loop) or value not in loop.inner


def _is_declared_at_definition(value: SSAValue) -> bool:
    return _is_head_argument(value) or (isinstance(value.owner, Operation) and not value.owner.regions)


def _iterate_tied(op: Operation) -> Iterator[tuple[SSAValue, SSAValue]]:
    """Yield pairs (result, operand) that an operation holds in the same registers.

    These are accumulators, and tiles that pass through a wait or an exchange.
    """
    if isinstance(op, TakeColumns):
        yield op.result, op.x
    if isinstance(op, ops.Perform) and op.results:
        if op.entry.effects.drains:
            yield from zip(op.results, op.arguments, strict=True)
        elif op.entry.effects.group and "c" in op.args:
            yield op.results[0], op.args["c"]


def _collect_same_registers(value: SSAValue) -> set[SSAValue]:
    """Return a value and the tiles before the waits that it passed through, which share its registers."""
    tiles = {value}
    while _is_wait(op := value.owner):
        value = op.arguments[value.index]  # type: ignore[attr-defined]
        tiles.add(value)
    return tiles


def _is_wait(op: object) -> TypeGuard[ops.Perform]:
    return isinstance(op, ops.Perform) and op.entry.effects.drains is not None


def _are_defined_together(x: SSAValue, y: SSAValue) -> bool:
    """Return whether two values are defined at the same moment."""
    if isinstance(x, BlockArgument) and isinstance(y, BlockArgument):
        return x.block is y.block
    return x.owner is y.owner and isinstance(x.owner, Operation)


# ---- copies
def iterate_early_copies(role: Operation, variables: Variables) -> Iterator[tuple[Operation, list[SSAValue]]]:
    """Yield the operations at which registers are copied that products in flight still write, each with the values."""
    for op in every(role):
        ages = variables.flight.before[op]
        if ages and (in_flight := [v for v in dict.fromkeys(_iterate_copies(op, variables)) if v in ages]):
            yield op, in_flight


def _iterate_copies(op: Operation, variables: Variables) -> Iterator[SSAValue]:
    """Yield the values that are copied before an operation, or where it passes them on.

    For a loop these are its initial values, and for its yield the values of a turn, if they do not end in the result's
    registers.
    """

    def differ(a: SSAValue, b: SSAValue) -> bool:
        return variables.of.get(a) is not variables.of.get(b)

    if isinstance(op, ops.Perform) and op.entry.effects.group and "c" in op.args and differ(op.args["c"], op.results[0]):
        yield op.args["c"]
    loop = op.parent_op() if isinstance(op, ops.Yield) else op
    if isinstance(loop, ops.Loop):
        values = last(loop.body).values if loop is not op else loop.carried
        yield from (v for v, a, r in zip(values, loop.inner, loop.results, strict=True) if differ(v, a) or differ(a, r))
    elif isinstance(op, ops.Yield) and isinstance(loop, ops.Branch):
        yield from (v for v, r in zip(op.values, loop.results, strict=True) if differ(v, r))
