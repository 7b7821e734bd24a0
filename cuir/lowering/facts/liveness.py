"""Which values of a role are needed behind each operation, and what reading a value reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from xdsl.ir import Block, Operation, SSAValue

from ..ir import machine, ops
from ..ir.inlining import inlined
from ..ir.types import ScalarT, TileT
from ..ir.walk import operations


def stored(value: SSAValue) -> bool:
    return isinstance(value.type, (ScalarT, TileT)) and not inlined(value)


def leaves(value: SSAValue) -> Iterator[SSAValue]:
    """The stored values that reading a value reads."""
    if stored(value):
        yield value
    elif isinstance(value.owner, Operation) and not isinstance(value.owner, ops.Declaration):
        for operand in value.owner.operands:
            yield from leaves(operand)


class Liveness:
    """Which stored values of a role are needed behind each operation."""

    def __init__(self, body: Block):
        self.after: dict[Operation, frozenset[SSAValue]] = {}
        self.at_start: dict[Block, frozenset[SSAValue]] = {}
        self._block(body, frozenset())

    def _block(self, block: Block, live: frozenset[SSAValue]) -> frozenset[SSAValue]:
        for op in reversed(operations(block)):
            self.after[op] = live
            live = self._through(op, live)
        self.at_start[block] = live
        return live

    def _through(self, op: Operation, live: frozenset[SSAValue]) -> frozenset[SSAValue]:
        if not op.regions:
            return live if len(op.results) == 1 and inlined(op.results[0]) else live.difference(op.results) | _reads(op.operands)
        if isinstance(op, machine.HandOut):
            return self._again(op.body.block, live)
        rest = live.difference(op.results)
        if isinstance(op, ops.Branch):
            return self._block(op.then.block, rest) | self._block(op.orelse.block, rest) | _reads([op.decision])
        if isinstance(op, ops.Loop):
            end = _reads([op.stop] if isinstance(op, ops.For) else [])  # which is asked at each turn
            return self._again(op.body.block, rest | end) | _reads(op.operands)
        return rest | _reads(op.operands)

    def _again(self, block: Block, live: frozenset[SSAValue]) -> frozenset[SSAValue]:
        """Of a block that is run again and again: what it needs from outside is needed until its last turn ends. `live`: what is needed behind it."""
        while True:
            start = self._block(block, live) - frozenset(block.args)
            if start <= live:
                return live
            live = live | start


def _reads(values: Iterable[SSAValue]) -> frozenset[SSAValue]:
    return frozenset(leaf for v in values for leaf in leaves(v))
