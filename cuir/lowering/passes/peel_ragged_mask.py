"""Peel the ragged mask: test a limit on columns only in the block of columns that reaches it.

Only the last block of keys of a sequence may be partial, so all other blocks skip the comparison with the sequence's
length.

`where(mask & (column < n), x, y)` is split for it; a select by the limit alone is peeled if it stands before or after
one by a mask. Other limits stay. Exact.
"""

from __future__ import annotations

from xdsl.ir import Block, Region, SSAValue

from ...ops.traits import LESS
from ...syntax.types import BOOL, I32
from ..ir import constructors, ops
from ..ir.ir_types import TileT, broadcast, is_scalar, scalar
from ..ir.ir_walk import every, iterate_joined
from .affine_columns import is_limit
from .rewriting import before, insert, replace


def run(kernel: ops.Kernel) -> None:
    """Peel the choices of the kernel."""
    for op in every(kernel):
        if op.parent is not None and isinstance(op, ops.Apply) and op.kind.chooses:
            _peel(op)


def _peel(op: ops.Apply) -> None:
    """Peel one choice, if it has exactly one such limit and a mask."""
    test, x, y = op.arguments
    t, parts = op.result.type, _split_condition(test)
    limits = [p for p in parts if _is_ragged_limit(p)]
    masks = [p for p in parts if p not in limits]
    has_mask = any(map(_is_elementwise_mask, masks)) if masks else x.type == t and (_is_masked(x) or _is_read_by_mask_alone(op.result))
    if not isinstance(t, TileT) or not t.layout.is_accumulator or len(limits) != 1 or not has_mask:
        return
    (limit,) = limits
    assert isinstance(limit.owner, ops.Apply)
    if masks:
        mask = masks[0]
        for part in masks[1:]:
            mask = insert(op, constructors.of_kind(test.owner, [mask, part], broadcast(BOOL, mask, part)))  # type: ignore[arg-type]
        x = insert(op, constructors.where(mask, x, y, t))
    columns = insert(op, ops.constant(t.shape[1], I32))
    reaches = insert(op, constructors.less(limit.owner.arguments[1], columns, scalar(BOOL)))
    masked_block, plain_block = Block(), Block()
    choice = constructors.where(limit, x, y, t)
    choice.location = op.location
    masked_block.add_ops([choice, ops.end([choice.result])])
    plain_block.add_op(ops.end([x]))
    new = ops.If(operands=[reaches], regions=[Region(masked_block), Region(plain_block)], result_types=[[t]])
    before(op, new)
    replace(op, [new.results[0]])


def _split_condition(test: SSAValue) -> list[SSAValue]:
    """Return the conditions that a test joins by &."""
    op = test.owner
    return list(iterate_joined(op, op.op)) if isinstance(op, ops.Apply) and op.kind.decided_by is False else [test]


def _is_masked(x: SSAValue) -> bool:
    """Return whether an elementwise condition chooses a value."""
    op = x.owner
    return isinstance(op, ops.Apply) and bool(op.kind.chooses) and any(map(_is_elementwise_mask, _split_condition(op.arguments[0])))


def _is_read_by_mask_alone(x: SSAValue) -> bool:
    """Return whether a choice by a mask is the only reader of a value, as the chosen side."""
    users = [use.operation for use in x.uses]
    if len(users) != 1 or not isinstance(users[0], ops.Apply) or not _is_masked(users[0].result):
        return False
    return users[0].arguments[1] is x


def _is_ragged_limit(part: SSAValue) -> bool:
    """Return whether a condition is `column < bound` with a bound for all rows."""
    op = part.owner
    return isinstance(op, ops.Apply) and op.kind.compares == LESS and is_limit(op) and is_scalar(op.arguments[1])


def _is_elementwise_mask(part: SSAValue) -> bool:
    """Return whether a condition differs from element to element and is no limit."""
    op = part.owner
    return isinstance(part.type, TileT) and part.type.layout.is_accumulator and not (isinstance(op, ops.Apply) and is_limit(op))


__all__ = ["run"]
