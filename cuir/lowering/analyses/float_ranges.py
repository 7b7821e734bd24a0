"""Bounds of floats, from constants, exponentials, sums and limits; and floats that are integral.

Bounds hold for results as they are rounded. A NaN lies within no bounds: callers handle it.
"""

from __future__ import annotations

import functools
import math

from xdsl.ir import SSAValue

from ...ops.traits import Traits
from ...syntax.types import I32
from ..ir import ops
from ..ir.ir_types import dtype_of
from ..ir.machine_tiles import Line
from .value_flow import find_sources, is_tile_wait

Range = tuple[float, float]
UNBOUNDED: Range = (-math.inf, math.inf)


def compute_float_range(value: SSAValue) -> Range:
    """Return the least and the greatest number that a scalar or an element of a tile may be."""
    return _look_up_range(value, {})


def _look_up_range(value: SSAValue, cache: dict[SSAValue, Range]) -> Range:
    """Return the range of a value; one that depends on itself is unbounded."""
    if value not in cache:
        cache[value] = UNBOUNDED
        cache[value] = _compute_range(value, cache)
    return cache[value]


def _compute_range(value: SSAValue, cache: dict[SSAValue, Range]) -> Range:
    op = value.owner
    if isinstance(op, ops.Constant):
        number = float(op.value)
        return (number, number) if not math.isnan(number) else UNBOUNDED
    inputs = find_sources(value)
    if inputs is not None and not is_tile_wait(op):
        return functools.reduce(_join, (_look_up_range(v, cache) for v in inputs))
    if isinstance(op, ops.Apply) and _is_bounded(op.kind):
        return _apply(op.kind, [_look_up_range(a, cache) for a in op.arguments])
    return UNBOUNDED


def _join(x: Range, y: Range) -> Range:
    return min(x[0], y[0]), max(x[1], y[1])


def _add(x: Range, y: Range) -> Range:
    return (x[0] + y[0] if -math.inf not in (x[0], y[0]) else -math.inf), (x[1] + y[1] if math.inf not in (x[1], y[1]) else math.inf)


def _negate(x: Range) -> Range:
    return -x[1], -x[0]


def _magnitude(x: Range) -> Range:
    return (0.0 if x[0] <= 0 <= x[1] else min(abs(x[0]), abs(x[1]))), max(abs(x[0]), abs(x[1]))


def _is_bounded(of: Traits) -> bool:
    """Return whether the operands' ranges bound the result."""
    return bool(of.linear or of.magnitude or of.exponential or of.extremum or of.chooses or of.repeats or of.logistic)


def _apply(of: Traits, operands: list[Range]) -> Range:
    """Compute the range of an operation on numbers of these ranges."""
    x = operands[0]
    if of.linear:
        return functools.reduce(_add, (r if by > 0 else _negate(r) for r, by in zip(operands, of.linear, strict=True)))
    if of.magnitude:
        return _magnitude(x)
    if of.exponential:
        return 0.0, float(of.exponential) ** min(x[1], 1000.0)  # what is small may be 0
    if of.extremum:
        least_or_greatest = min if of.extremum == "min" else max
        return least_or_greatest(r[0] for r in operands), least_or_greatest(r[1] for r in operands)
    if of.chooses:
        return _join(*operands[1:])
    return x if of.repeats else (-1.0, 1.0)


__all__ = ["UNBOUNDED", "Range", "compute_float_range"]


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
