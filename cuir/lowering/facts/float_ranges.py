"""Between which numbers a float lies for certain, if it is a number: found from constants, exponentials, sums and limits.

A NaN lies nowhere: whoever asks takes care of it. Bounds hold for results as they are rounded.
"""

from __future__ import annotations

import functools
import math

from xdsl.ir import SSAValue

from ...ops.traits import Traits
from ..ir import ops
from .flow import sources, waits

Range = tuple[float, float]
EVERYTHING: Range = (-math.inf, math.inf)


def float_range(value: SSAValue) -> Range:
    """The least and the greatest number that a scalar or an element of a tile may be."""
    return _range(value, {})


def _range(value: SSAValue, known: dict[SSAValue, Range]) -> Range:
    """`known`: values that were asked for; one that depends on itself may be anything."""
    if value not in known:
        known[value] = EVERYTHING
        known[value] = _of(value, known)
    return known[value]


def _of(value: SSAValue, known: dict[SSAValue, Range]) -> Range:
    op = value.owner
    if isinstance(op, ops.Constant):
        number = float(op.value)
        return (number, number) if not math.isnan(number) else EVERYTHING
    given = sources(value)
    if given is not None and not waits(op):
        return functools.reduce(_either, (_range(v, known) for v in given))
    if isinstance(op, ops.Apply) and _bounded(op.kind):
        return _applied(op.kind, [_range(a, known) for a in op.arguments])
    return EVERYTHING


def _either(x: Range, y: Range) -> Range:
    return min(x[0], y[0]), max(x[1], y[1])


def _sum(x: Range, y: Range) -> Range:
    return (x[0] + y[0] if -math.inf not in (x[0], y[0]) else -math.inf), (x[1] + y[1] if math.inf not in (x[1], y[1]) else math.inf)


def _negated(x: Range) -> Range:
    return -x[1], -x[0]


def _magnitude(x: Range) -> Range:
    return (0.0 if x[0] <= 0 <= x[1] else min(abs(x[0]), abs(x[1]))), max(abs(x[0]), abs(x[1]))


def _bounded(of: Traits) -> bool:
    """Whether something follows from the operands' ranges."""
    return bool(of.linear or of.magnitude or of.exponential or of.extremum or of.chooses or of.repeats or of.logistic)


def _applied(of: Traits, given: list[Range]) -> Range:
    """An operation on numbers of these ranges."""
    x = given[0]
    if of.linear:
        return functools.reduce(_sum, (r if by > 0 else _negated(r) for r, by in zip(given, of.linear, strict=True)))
    if of.magnitude:
        return _magnitude(x)
    if of.exponential:
        return 0.0, float(of.exponential) ** min(x[1], 1000.0)  # what is small may be 0
    if of.extremum:
        least_or_greatest = min if of.extremum == "min" else max
        return least_or_greatest(r[0] for r in given), least_or_greatest(r[1] for r in given)
    if of.chooses:
        return _either(*given[1:])
    return x if of.repeats else (-1.0, 1.0)


__all__ = ["EVERYTHING", "Range", "float_range"]
