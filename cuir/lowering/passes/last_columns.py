"""A limit on columns that nearly every block is within goes under a branch, where a mask asks each element besides: only a block that reaches it asks the limit.

A block of keys meets the end of a sequence once, while its mask is asked everywhere: each element is spared a comparison. The limit is the same for all rows, so the branch is
one of the worker. `where(mask & (column < n), x, y)` is taken apart for it; a choice by the limit alone is put there if it stands before or behind one by a mask. Limits that meet
no mask stay as they are: one comparison asks them. No result changes.
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
    t, parts = op.result.type, _parts(test)
    at_the_end = [p for p in parts if _last(p)]
    others = [p for p in parts if p not in at_the_end]
    asked = any(map(_elementwise, others)) if others else x.type == t and (_by_mask(x) or _masked_alone(op.result))
    if not isinstance(t, TileT) or t.layout.data != "full" or len(at_the_end) != 1 or not asked:
        return
    (limit,) = at_the_end
    assert isinstance(limit.owner, ops.Apply)
    if others:
        mask = others[0]
        for part in others[1:]:
            mask = insert(op, make.of_kind(test.owner, [mask, part], truths([mask, part])))  # type: ignore[arg-type]
        x = insert(op, make.where(mask, x, y, t))
    columns = insert(op, ops.constant(t.shape[1], I32))
    reaches = insert(op, make.less(limit.owner.arguments[1], columns, scalar(BOOL)))
    beyond, within = Block(), Block()
    choice = make.where(limit, x, y, t)
    choice.location = op.location
    beyond.add_ops([choice, ops.end([choice.result])])
    within.add_op(ops.end([x]))
    new = ops.If(operands=[reaches], regions=[Region(beyond), Region(within)], result_types=[[t]])
    before(op, new)
    replace(op, [new.results[0]])


def _parts(test: SSAValue) -> list[SSAValue]:
    """The conditions that a test joins by &."""
    op = test.owner
    return list(joined(op, op.op)) if isinstance(op, ops.Apply) and op.kind.decided_by is False else [test]


def _by_mask(x: SSAValue) -> bool:
    """Whether a condition of each element chooses it."""
    op = x.owner
    return isinstance(op, ops.Apply) and bool(op.kind.chooses) and any(map(_elementwise, _parts(op.arguments[0])))


def _masked_alone(x: SSAValue) -> bool:
    """Whether only a choice by a mask reads it, which may choose it."""
    users = [use.operation for use in x.uses]
    if len(users) != 1 or not isinstance(users[0], ops.Apply) or not _by_mask(users[0].result):
        return False
    return users[0].arguments[1] is x


def _last(part: SSAValue) -> bool:
    """Whether it is `column < bound` with a bound for all rows."""
    op = part.owner
    return isinstance(op, ops.Apply) and op.kind.compares == LESS and is_limit(op) and is_scalar(op.arguments[1])


def _elementwise(part: SSAValue) -> bool:
    """Whether each element is asked by itself, and by no limit."""
    op = part.owner
    return isinstance(part.type, TileT) and part.type.layout.data == "full" and not (isinstance(op, ops.Apply) and is_limit(op))


__all__ = ["run"]
