"""A limit on columns that nearly every block is within goes under a branch: `where(mask & (column < n), x, y)` asks the mask of each element, and the limit only in a block that reaches it.

A block of keys meets the end of a sequence once, while its mask is asked everywhere: each element is spared a comparison. The limit is the same for all rows, so the branch is
one of the worker. Limits that stand beside no other condition, or beside limits alone, stay as they are: one comparison asks them. No result changes.
"""

from __future__ import annotations

from xdsl.ir import Block, Region, SSAValue

from ...ops.traits import LESS
from ...syntax.types import BOOL, I32
from ..ir import make, ops
from ..ir.types import TileT, is_scalar, scalar
from ..ir.walk import every
from .affine_columns import is_limit, joined, truths
from .rewriting import before, insert, replace


def run(kernel: ops.Kernel) -> None:
    for op in every(kernel):
        if op.parent is not None and isinstance(op, ops.Apply) and op.kind.chooses:
            _choice(op)


def _choice(op: ops.Apply) -> None:
    test, x, y = op.arguments
    both, t = test.owner, op.result.type
    if not isinstance(t, TileT) or t.layout.data != "full" or not isinstance(both, ops.Apply) or both.kind.decided_by is not False:
        return
    parts = list(joined(both, both.op))
    at_the_end = [p for p in parts if _last(p)]
    others = [p for p in parts if p not in at_the_end]
    if len(at_the_end) != 1 or not any(_elementwise(p) for p in others):
        return
    (limit,) = at_the_end
    assert isinstance(limit.owner, ops.Apply)
    mask = others[0]
    for part in others[1:]:
        mask = insert(op, make.of_kind(both, [mask, part], truths([mask, part])))
    chosen = insert(op, make.where(mask, x, y, t))
    columns = insert(op, ops.constant(t.shape[1], I32))
    reaches = insert(op, make.less(limit.owner.arguments[1], columns, scalar(BOOL)))
    sides = []
    for value in (make.where(limit, chosen, y, t), None):
        inner = Block()
        if value is not None:
            value.location = op.location
            inner.add_op(value)
        inner.add_op(ops.end([chosen if value is None else value.result]))
        sides.append(Region(inner))
    new = ops.If(operands=[reaches], regions=sides, result_types=[[t]])
    before(op, new)
    replace(op, [new.results[0]])


def _last(part: SSAValue) -> bool:
    """Whether it is `column < bound` with a bound for all rows."""
    op = part.owner
    return isinstance(op, ops.Apply) and op.kind.compares == LESS and is_limit(op) and is_scalar(op.arguments[1])


def _elementwise(part: SSAValue) -> bool:
    """Whether each element is asked by itself, and by no limit."""
    op = part.owner
    return isinstance(part.type, TileT) and part.type.layout.data == "full" and not (isinstance(op, ops.Apply) and is_limit(op))


__all__ = ["run"]
