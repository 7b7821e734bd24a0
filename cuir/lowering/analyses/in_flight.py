"""Asynchronous products in flight at each operation.

Their registers belong to the tensor core until a wait, and may be neither copied nor overwritten. Groups of products
finish in the order of their issue, so the age of a product (the number issued after it, on the path with the fewest) is
the number that a wait for it may leave running.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.ir import Block, Operation, SSAValue

from ...ops.base import PRODUCTS
from ..ir import ops
from ..ir.asynchronous_products import MOST
from ..ir.ir_types import is_tile
from ..ir.ir_walk import last

Ages = Mapping[SSAValue, int]


class InFlight:
    """Tiles that products in flight may write, with the products' ages, before and after each operation.

    With `operands`, these are the tiles that the products read.
    """

    def __init__(self, body: Block, operands: bool = False):
        self.operands = operands
        self.before: dict[Operation, Ages] = {}
        self.after: dict[Operation, Ages] = {}
        self.at_start: dict[Block, Ages] = {}
        self._block(body, {})

    def _block(self, block: Block, ages: Ages) -> Ages:
        self.at_start[block] = ages
        for op in block.ops:
            self.before[op] = ages
            ages = self._visit(op, ages)
            self.after[op] = ages
        return ages

    def _visit(self, op: Operation, ages: Ages) -> Ages:
        if isinstance(op, ops.Apply):  # most are
            return ages
        if isinstance(op, ops.Branch):
            return _merge(*(_rename(self._block(r.block, ages), last(r).values, op.results) for r in (op.then, op.orelse)))
        if isinstance(op, ops.Loop):
            state = _rename(ages, op.carried, op.inner)
            while (merged := _merge(state, _rename(self._block(op.body.block, state), last(op.body).values, op.inner))) != state:
                state = merged
            return _rename(state, op.inner, op.results)
        if not isinstance(op, ops.Perform):
            for region in op.regions:
                self._block(region.block, ages)
            return ages
        if op.entry.effects.group == PRODUCTS:
            accumulator = op.args.get("c")  # the product has its registers now
            new = [v for n, v in op.args.items() if n != "c" and is_tile(v)] if self.operands else op.results
            return {v: min(age + 1, MOST) for v, age in ages.items() if v is not accumulator} | dict.fromkeys(new, 0)
        if op.entry.effects.drains == PRODUCTS:
            return {v: age for v, age in ages.items() if age < op.const("pending")}
        return ages


def _rename(ages: Ages, values: Sequence[SSAValue], into: Sequence[SSAValue]) -> Ages:
    """Rename values that flow into others, such as the arguments and results of a loop."""
    rest = {v: age for v, age in ages.items() if v not in values and v not in into}
    return rest | {target: ages[v] for target, v in zip(into, values, strict=True) if v in ages}


def _merge(*paths: Ages) -> Ages:
    """Merge the ages of several paths; the youngest counts."""
    youngest: dict[SSAValue, int] = {}
    for ages in paths:
        for value, age in ages.items():
            youngest[value] = min(age, youngest.get(value, MOST))
    return youngest
