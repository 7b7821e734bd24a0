"""Interval arithmetic of each operation on i32: least and greatest results for operands in intervals.

Used by all code that bounds values: an index by the lengths of a launch, a read of a tensor, the reach of a tile, the
values of the tile IR. Callers supply the intervals of operands and check that a result fits 32 bits. The numbers are
mathematical: they do not wrap. No divisor is 0, which is an error.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

Interval = tuple[int, int]
Bounds = Interval | None  # None: anything
INF = 2**64  # the unknown end of an interval of which the other end alone is known, beyond products of 32-bit numbers
ANYTHING: Interval = (-INF, INF)
Function = Callable[..., Interval]


def make_hull(*bounds: Bounds) -> Bounds:
    """Return the least interval that contains all."""
    finite = [b for b in bounds if b is not None]
    return (min(lo for lo, _ in finite), max(hi for _, hi in finite)) if finite and len(finite) == len(bounds) else None


def is_half_open(bounds: Bounds) -> bool:
    """Return whether one end alone is known."""
    return bounds is not None and (bounds[0] <= -INF or bounds[1] >= INF)


def add_saturating(a: int, b: int) -> int:
    """Add a number to an end of an interval, which stays unknown if it is."""
    return a if abs(a) >= INF else max(-INF, min(INF, a + b))


def add_intervals(x: Interval, y: Interval) -> Interval:
    """Return the interval of sums."""
    return add_saturating(x[0], y[0]) if y[0] > -INF else -INF, add_saturating(x[1], y[1]) if y[1] < INF else INF


def _negate(x: Interval) -> Interval:
    return -x[1], -x[0]


def multiply_intervals(x: Interval, y: Interval) -> Interval:
    """Return the interval of products."""
    corners = (x[0] * y[0], x[0] * y[1], x[1] * y[0], x[1] * y[1])
    return max(min(corners), -INF), min(max(corners), INF)


def _make_quotient(round_up: bool) -> Function:
    def divide(a: int, b: int) -> int:
        if abs(a) >= INF:
            return a
        if b >= INF:  # as by a huge divisor
            return int(a > 0) if round_up else -int(a < 0)
        return -(-a // b) if round_up else a // b

    def interval(x: Interval, y: Interval) -> Interval:
        if y[0] < 0:  # the quotient may be -x
            most = max(abs(x[0]), abs(x[1]))
            return -most, most
        corners = [divide(a, b) for a, b in itertools.product(x, (max(1, y[0]), max(1, y[1])))]
        return min(corners), max(corners)

    return interval


def _remainder(x: Interval, y: Interval) -> Interval:
    """Bound a remainder, which has the sign of the divisor."""
    if x[0] >= 0 and x[1] < y[0]:
        return x
    least, most = min(0, add_saturating(y[0], 1)), max(0, add_saturating(y[1], -1))
    return (least, min(x[1], most)) if x[0] >= 0 and y[0] >= 0 else (least, most)


def _and(*operands: Interval) -> Interval:
    most = [hi for lo, hi in operands if lo >= 0]
    return (0, min(most)) if most else ANYTHING


def _or(x: Interval, y: Interval) -> Interval:
    if min(x[0], y[0]) < 0:
        return ANYTHING
    most = max(x[1], y[1])
    return 0, INF if most >= INF else (1 << most.bit_length()) - 1


def _take_magnitude(x: Interval) -> Interval:
    return 0 if x[0] <= 0 <= x[1] else min(abs(x[0]), abs(x[1])), max(abs(x[0]), abs(x[1]))


def _pick_extremum(pick: Callable[[list[int]], int]) -> Function:
    """Make the interval function of an extremum: one known operand bounds one end."""
    return lambda *operands: (pick([lo for lo, _ in operands]), pick([hi for _, hi in operands]))


def _truth(x: Interval, y: Interval) -> Interval:
    return 0, 1


def _choice(cond: Interval, x: Interval, y: Interval) -> Interval:
    return min(x[0], y[0]), max(x[1], y[1])


INTERVALS: dict[str, Function] = {
    "+": add_intervals,
    "-": lambda x, y: add_intervals(x, _negate(y)),
    "*": multiply_intervals,
    "//": _make_quotient(round_up=False),
    "%": _remainder,
    "cdiv": _make_quotient(round_up=True),
    "neg": _negate,
    "abs": _take_magnitude,
    "min": _pick_extremum(min),
    "max": _pick_extremum(max),
    "~": lambda x: (add_saturating(-x[1], -1), add_saturating(-x[0], -1)),
    "&": _and,
    "|": _or,
    "^": _or,
    "==": _truth,
    "!=": _truth,
    "<": _truth,
    "<=": _truth,
    ">": _truth,
    ">=": _truth,
    "bit": _truth,
    "ifexp": _choice,
    "where": _choice,
}
# Intermediate values that may be further from 0 than the result: a + b - 1 in (a + b - 1) // b.
ON_THE_WAY: dict[str, Callable[..., Bounds]] = {
    "cdiv": lambda a, b: (a[0], a[1] + b[1] - 1) if a is not None and b is not None and b[0] > 0 else None,
}
