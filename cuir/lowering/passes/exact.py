"""Marks what decides: the operations on floats from which comparisons and casts to i32 or bool are made. They are computed as written.

A fused multiply-add or another order of operations changes a value by a rounding, which nobody minds, and with it the truth of a comparison, which removes
keys from a mask. Meant are the operands of whatever makes an i32 or a bool of floats, and what these are made of, through what loops and branches carry, up
to memory, reductions and products; not sums of rows and what is made of them, a number a row: a kernel may keep them in parts, and their last bits depend on
the order anyway. Scalars of the kernel's frame are exact all: they are for several roles, in one of which an equal value may decide.
"""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects.builtin import UnitAttr
from xdsl.ir import Operation, SSAValue

from ...syntax.types import BOOL, I32
from ..facts.flow import sources, targets
from ..ir import ops
from ..ir.types import TileT, dtype_of
from ..ir.walk import every


def run(kernel: ops.Kernel) -> None:
    sums = _sums(kernel)
    left = [x for op in every(kernel) if isinstance(op, ops.Apply) and dtype_of(op.result) in (I32, BOOL) for x in _floats(op)]
    left += [op.results[0] for op in _frame(kernel) if isinstance(op, ops.Apply) and dtype_of(op.result).is_float]
    seen: set[SSAValue] = set()
    while left:
        value = left.pop()
        if value in seen or value in sums:
            continue
        seen.add(value)
        if (given := sources(value)) is not None:
            left += given
        elif isinstance(value.owner, ops.Apply) and not value.owner.entry.reduces:
            value.owner.properties["exact"] = UnitAttr()
            left += _floats(value.owner)


def _frame(kernel: ops.Kernel) -> Iterator[Operation]:
    """The operations outside of all roles."""
    for op in kernel.body.block.ops:
        if not isinstance(op, ops.Role):
            yield op
            yield from every(op)


def _floats(op: ops.Apply) -> list[SSAValue]:
    """The float operands of an operation on values; none of reductions."""
    return [] if op.entry.reduces else [a for a in op.arguments if dtype_of(a).is_float]


def _sums(kernel: ops.Kernel) -> set[SSAValue]:
    """Numbers a row that a sum of rows reaches."""
    deciding: set[SSAValue] = set()
    left: list[SSAValue] = [op.result for op in every(kernel) if isinstance(op, ops.Apply) and op.entry.reduces and op.entry.sums]
    while left:
        value = left.pop()
        if value in deciding or not isinstance(value.type, TileT) or value.type.shape[1] != 1 or not dtype_of(value).is_float:
            continue
        deciding.add(value)
        for use in value.uses:
            left += targets(use)
            if isinstance(use.operation, ops.Apply) and not use.operation.entry.reduces:
                left.append(use.operation.result)
    return deciding


__all__ = ["run"]
