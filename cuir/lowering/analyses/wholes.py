"""Floats that are integral by construction, as products and sums of such are however they round."""

from __future__ import annotations

from xdsl.ir import SSAValue

from ...syntax.types import I32
from ..ir import ops
from ..ir.ir_types import dtype_of
from ..ir.machine_tiles import Line


def is_integral(value: SSAValue) -> bool:
    """Return whether an f32 scalar, or every element of a tile, is integral, infinite or NaN.

    A finite one is 0 or at least 1 in magnitude.
    """
    op = value.owner
    if isinstance(op, ops.Constant):
        return float(op.value).is_integer()
    if isinstance(op, Line):
        return is_integral(op.slope) and (op.rows is None or is_integral(op.rows))
    if not isinstance(op, ops.Apply):
        return False
    kind = op.kind
    if kind.converts:
        return dtype_of(op.arguments[0]) == I32
    if kind.linear or kind.multiplies or kind.extremum or kind.magnitude or kind.repeats:
        return all(map(is_integral, op.arguments))
    return False


__all__ = ["is_integral"]
