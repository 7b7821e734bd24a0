"""Liveness of a role's values, and the stored values that a read touches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from xdsl.ir import Block, Operation, SSAValue

from ..ir import machine_ops as machine
from ..ir import ops
from ..ir.inlining import is_inlined
from ..ir.ir_types import ScalarT, TileT
from ..ir.ir_walk import operations


def is_stored(value: SSAValue) -> bool:
    """Return whether a value is a scalar or tile with registers of its own."""
    return isinstance(value.type, (ScalarT, TileT)) and not is_inlined(value)


def iterate_leaves(value: SSAValue) -> Iterator[SSAValue]:
    """Yield the stored values that reading a value reads."""
    if is_stored(value):
        yield value
    elif isinstance(value.owner, Operation) and not isinstance(value.owner, ops.Declaration):
        for operand in value.owner.operands:
            yield from iterate_leaves(operand)


class Liveness:
    """The stored values of a role that are live after each operation."""

    def __init__(self, body: Block):
        self.after: dict[Operation, frozenset[SSAValue]] = {}
        self.at_start: dict[Block, frozenset[SSAValue]] = {}
        self._block(body, frozenset())

    def _block(self, block: Block, live: frozenset[SSAValue]) -> frozenset[SSAValue]:
        for op in reversed(operations(block)):
            self.after[op] = live
            live = self._visit(op, live)
        self.at_start[block] = live
        return live

    def _visit(self, op: Operation, live: frozenset[SSAValue]) -> frozenset[SSAValue]:
        if not op.regions:
            return live if len(op.results) == 1 and is_inlined(op.results[0]) else live.difference(op.results) | _read_values(op.operands)
        if isinstance(op, machine.HandOut):
            return self._repeat(op.body.block, live)
        rest = live.difference(op.results)
        if isinstance(op, ops.Branch):
            return self._block(op.then.block, rest) | self._block(op.orelse.block, rest) | _read_values([op.decision])
        if isinstance(op, ops.Loop):
            end = _read_values([op.stop] if isinstance(op, ops.For) else [])  # the loop reads it at each turn
            return self._repeat(op.body.block, rest | end) | _read_values(op.operands)
        return rest | _read_values(op.operands)

    def _repeat(self, block: Block, live: frozenset[SSAValue]) -> frozenset[SSAValue]:
        """Visit a block that runs repeatedly; values from outside stay live until its last turn ends.

        `live`: values that are live after it.
        """
        while True:
            start = self._block(block, live) - frozenset(block.args)
            if start <= live:
                return live
            live = live | start


def _read_values(values: Iterable[SSAValue]) -> frozenset[SSAValue]:
    return frozenset(leaf for v in values for leaf in iterate_leaves(v))
