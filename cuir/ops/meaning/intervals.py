"""Interval arithmetic of each operation on i32: least and greatest results for operands in intervals.

Used by all code that bounds values: an index by the lengths of a launch, a read of a tensor, the reach of a tile.
Callers supply the intervals of names and check that a result fits 32 bits. The numbers are mathematical: they do not
wrap.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

Interval = tuple[int, int]
Bounds = Interval | None  # None: anything
FAR = 2**62  # the unknown end of an interval of which the other end alone is known
Function = Callable[..., Bounds]


def make_hull(*bounds: Bounds) -> Bounds:
    """Return the least interval that contains all."""
    finite = [b for b in bounds if b is not None]
    return (min(lo for lo, _ in finite), max(hi for _, hi in finite)) if finite and len(finite) == len(bounds) else None


def is_half_open(bounds: Bounds) -> bool:
    """Return whether one end alone is known."""
    return bounds is not None and (bounds[0] <= -FAR or bounds[1] >= FAR)


def _from_corners(f: Callable[[int, int], int]) -> Function:
    """Make the interval function of an operation that is monotonic in each operand."""

    def interval(x: Bounds, y: Bounds) -> Bounds:
        if x is None or y is None:
            return None
        values = [f(a, b) for a, b in itertools.product(x, y)]
        return min(values), max(values)

    return interval


def _by_positive_divisor(f: Callable[[int, int], int]) -> Function:
    of = _from_corners(f)
    return lambda x, y: of(x, y) if y is not None and y[0] > 0 else None


def _remainder(x: Bounds, y: Bounds) -> Bounds:
    if y is None or y[0] <= 0:
        return None
    if x is None or x[0] < 0:
        return 0, y[1] - 1
    return x if x[1] < y[0] else (0, min(x[1], y[1] - 1))


def _and(x: Bounds, y: Bounds) -> Bounds:
    most = [i[1] for i in (x, y) if i is not None and i[0] >= 0]
    return (0, min(most)) if most else None


def _or(x: Bounds, y: Bounds) -> Bounds:
    return (0, (1 << max(x[1], y[1]).bit_length()) - 1) if x is not None and y is not None and min(x[0], y[0]) >= 0 else None


def _negate(x: Bounds) -> Bounds:
    return None if x is None else (-x[1], -x[0])


def _take_magnitude(x: Bounds) -> Bounds:
    return None if x is None else (0 if x[0] <= 0 <= x[1] else min(map(abs, x)), max(map(abs, x)))


def _pick_extremum(pick: Callable[[list[int]], int]) -> Function:
    """Make the interval function of an extremum: one known operand bounds one end."""

    def interval(*bounds: Bounds) -> Bounds:
        if all(b is None for b in bounds):
            return None
        sides = [(-FAR, FAR) if b is None else b for b in bounds]
        return pick([s[0] for s in sides]), pick([s[1] for s in sides])

    return interval


def _truth(x: Bounds, y: Bounds) -> Bounds:
    return 0, 1


def _choice(cond: Bounds, x: Bounds, y: Bounds) -> Bounds:
    return make_hull(x, y)


INTERVALS: dict[str, Function] = {
    "+": _from_corners(lambda a, b: a + b),
    "-": _from_corners(lambda a, b: a - b),
    "*": _from_corners(lambda a, b: a * b),
    "//": _by_positive_divisor(lambda a, b: a // b),
    "%": _remainder,
    "cdiv": _by_positive_divisor(lambda a, b: -(-a // b)),
    "neg": _negate,
    "abs": _take_magnitude,
    "min": _pick_extremum(min),
    "max": _pick_extremum(max),
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
ON_THE_WAY: dict[str, Function] = {
    "cdiv": lambda a, b: (a[0], a[1] + b[1] - 1) if a is not None and b is not None and b[0] > 0 else None,
}
