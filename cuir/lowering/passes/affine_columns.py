"""Affine functions of the column, base + slope * column, and limits on the column, for passes that rewrite them."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.ir import Operation, SSAValue

from ...ops.traits import BELOW, DIFFERENCE, LESS, NEGATIVE, SUM
from ...syntax.types import I32
from ..ir import constructors, ops
from ..ir.ir_types import TileT, broadcast
from ..ir.machine_tiles import Line
from ..ir.ops import number
from .rewriting import insert


@dataclass(frozen=True)
class Affine:
    """base + slope * column; base is a scalar or a tile of a number per row, None for 0."""

    base: SSAValue | None
    slope: int


def decompose(value: SSAValue, at: Operation, cache: dict[SSAValue, Affine | None] | None = None) -> Affine | None:
    """Decompose a value into such a sum, whose operations are inserted before `at`.

    Args:
        value: An i32 scalar or tile.
        at: The place of new operations.
        cache: Values decomposed at this place.

    Returns: None if the value has another form.
    """
    cache = {} if cache is None else cache
    if value not in cache:
        cache[value] = _decompose(value, at, cache)
    return cache[value]


def _decompose(value: SSAValue, at: Operation, cache: dict[SSAValue, Affine | None]) -> Affine | None:
    t = value.type
    if not isinstance(t, TileT) or t.layout.is_constant_along_rows:
        return Affine(None, 0) if number(value) == 0 else Affine(value, 0)
    op = value.owner
    if isinstance(op, Line):
        slope = ops.constant_value(op.slope)
        return Affine(op.rows, slope) if isinstance(slope, int) else None
    if not isinstance(op, ops.Apply):
        return None
    kind = op.kind
    if kind.index_of == "column":
        return Affine(None, 1)
    if kind.repeats:
        return Affine(op.arguments[0], 0)
    if not (kind.linear or kind.multiplies):
        return None
    parts = [decompose(a, at, cache) for a in op.arguments]
    if any(p is None for p in parts):
        return None
    operands = [p for p in parts if p is not None]
    if kind.linear == NEGATIVE:
        return Affine(_negate(operands[0].base, at), -operands[0].slope)
    x, y = operands
    if kind.linear == SUM:
        return Affine(_add(x.base, y.base, at), x.slope + y.slope)
    if kind.linear == DIFFERENCE:
        return Affine(subtract_bases(x.base, y.base, at), x.slope - y.slope)
    for a, b in ((x, y), (y, x)):
        if b.slope == 0 and b.base is not None and (n := number(b.base)) is not None:
            return Affine(_multiply(a.base, b.base, at), a.slope * int(n))
    return None if x.slope or y.slope else Affine(_multiply(x.base, y.base, at), 0)


# ---- operations on bases: scalars, or tiles of the operands' joint shape; None is 0
def _add(x: SSAValue | None, y: SSAValue | None, at: Operation) -> SSAValue | None:
    return y if x is None else x if y is None else insert(at, constructors.add(x, y, broadcast(I32, x, y)))


def subtract_bases(x: SSAValue | None, y: SSAValue | None, at: Operation) -> SSAValue | None:
    """Insert the difference of two bases."""
    return x if y is None else _negate(y, at) if x is None else insert(at, constructors.subtract(x, y, broadcast(I32, x, y)))


def _negate(x: SSAValue | None, at: Operation) -> SSAValue | None:
    return None if x is None else insert(at, constructors.negate(x, broadcast(I32, x)))


def _multiply(x: SSAValue | None, y: SSAValue | None, at: Operation) -> SSAValue | None:
    return None if x is None or y is None else insert(at, constructors.multiply(x, y, broadcast(I32, x, y)))


def is_limit(op: ops.Apply) -> bool:
    """Return whether a comparison is `column < bound` or `bound <= column` with one bound for all columns."""
    holds = op.kind.compares
    if holds not in BELOW:
        return False
    columns, bound = op.arguments if holds == LESS else op.arguments[::-1]
    return ops.kind_of(columns).index_of == "column" and not _varies_by_column(bound)


def _varies_by_column(value: SSAValue) -> bool:
    return isinstance(value.type, TileT) and value.type.layout.has_accumulator_columns
