"""Which floats are whole numbers, by what they are made of. Products and sums of such are, however they round."""

from __future__ import annotations

from xdsl.ir import SSAValue

from ...syntax.types import I32
from ..ir import ops
from ..ir.machine_tiles import Line
from ..ir.types import dtype_of


def whole(value: SSAValue) -> bool:
    """Whether an f32 scalar, or every element of a tile, is a whole number (a finite one of which is 0 or at least 1 in magnitude), or infinite or no number."""
    op = value.owner
    if isinstance(op, ops.Constant):
        return float(op.value).is_integer()
    if isinstance(op, Line):
        return whole(op.slope) and (op.rows is None or whole(op.rows))
    if not isinstance(op, ops.Apply):
        return False
    of = op.kind
    if of.converts:
        return dtype_of(op.arguments[0]) == I32
    if of.linear or of.multiplies or of.extremum or of.magnitude or of.repeats:
        return all(map(whole, op.arguments))
    return False


__all__ = ["whole"]
