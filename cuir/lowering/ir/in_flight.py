"""Asynchronous products in flight at each operation.

Their registers belong to the tensor core until a wait, and may be neither copied nor overwritten. Groups of products
finish in the order of their issue, so the age of a product (the number issued after it, on the path with the fewest) is
the number that a wait for it may leave running.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.ir import Block, Operation, SSAValue

from ...ops.base import PRODUCTS
from . import ops
from .fixed_point import Forward
from .ir_types import is_tile

MOST = 7  # largest useful count of wgmma.wait_group, at which ages saturate
Ages = Mapping[SSAValue, int]


class InFlight(Forward[Ages]):
    """Tiles that products in flight may write, with the products' ages, before and after each operation.

    With `operands`, these are the tiles that the products read.
    """

    def __init__(self, body: Block, operands: bool = False):
        super().__init__()
        self.operands = operands
        self.run(body, {})

    def transfer(self, op: Operation, state: Ages) -> Ages:
        """Add the product that an operation issues; remove those that it takes over or waits for."""
        if isinstance(op, ops.Apply) or not isinstance(op, ops.Perform):  # most are the first
            return state
        if op.entry.effects.group == PRODUCTS:
            accumulator = op.args.get("c")  # the product has its registers now
            new = [v for n, v in op.args.items() if n != "c" and is_tile(v)] if self.operands else op.results
            return {v: min(age + 1, MOST) for v, age in state.items() if v is not accumulator} | dict.fromkeys(new, 0)
        if op.entry.effects.drains == PRODUCTS:
            pending = self.count_pending(op, state)
            return {v: age for v, age in state.items() if age < pending}
        return state

    def count_pending(self, wait: ops.Perform, state: Ages) -> int:
        """Return the number of products that a wait leaves in flight."""
        return int(wait.const("pending"))

    def rename(self, state: Ages, values: Sequence[SSAValue], into: Sequence[SSAValue]) -> Ages:
        """Rename tiles that flow into others."""
        if not state:
            return state
        rest = {v: age for v, age in state.items() if v not in values and v not in into}
        return rest | {target: state[v] for target, v in zip(into, values, strict=True) if v in state}

    def join(self, a: Ages, b: Ages) -> Ages:
        """Merge the ages of two paths; the youngest counts."""
        youngest = dict(a)
        for value, age in b.items():
            youngest[value] = min(age, youngest.get(value, MOST))
        return youngest
