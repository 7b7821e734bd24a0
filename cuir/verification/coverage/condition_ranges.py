"""Sides of conditions that no launch can take, by the ranges of the kernel's values: lengths are at least 1."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.ir import SSAValue

from ...checking.checked import Checked
from ...lowering.analyses.ranges import Ranges
from ...lowering.ir import ops
from ...lowering.ir.build_ir import build_for_analyses
from ...lowering.ir.ir_types import dtype_of
from ...ops.meaning.intervals import ANYTHING, Interval
from ...ops.traits import Traits
from ...syntax.nodes import Call, Expr, For
from ...syntax.types import BOOL, I32, Scalar, TileType
from ...syntax.walk import IdentityKey
from .conditions import Condition


class PossibleSides:
    """The sides of a kernel's conditions that some launch may take."""

    def __init__(self, checked: Checked):
        built = build_for_analyses(checked)
        self._values, self._ranges = built.values, Ranges(built.kernel, shortest=1)

    def find_impossible(self, c: Condition) -> int:
        """Return the mask of the sides that the condition is certainly never on."""
        if isinstance(c.node, For):
            return self._find_impossible_turns(c.node)
        if c.op is None:
            return _exclude_truth(self._bound(c.node))
        return _IMPOSSIBLE[c.kind](c, [self._bound(e) for e in c.operands])

    def _find_impossible_turns(self, loop: For) -> int:
        if not isinstance(loop.iter, Call) or len(loop.iter.args) == 3:
            return 0
        *first, stop = (self._bound(e) for e in loop.iter.args)
        start = first[0] if first else (0, 0)
        least, most = stop[0] - start[1], stop[1] - start[0]
        return (1 if least > 0 else 0) | (2 if least > 1 or most < 1 else 0) | (4 if most < 2 else 0)

    def _bound(self, e: Expr) -> Interval:
        """Return the bounds of an integer; 0 and 1 of a truth value."""
        value = self._values.get(IdentityKey(e))
        return ANYTHING if value is None else self._bound_value(value)

    def _bound_value(self, value: SSAValue) -> Interval:
        if (number := ops.number(value)) is not None:
            return (int(number), int(number)) if not isinstance(number, float) else ANYTHING
        if dtype_of(value) == BOOL:
            kind = ops.kind_of(value)
            return _bound_truth(kind, *map(self._bound_value, value.owner.operands)) if kind.compares else ANYTHING  # type: ignore[union-attr]
        known = self._ranges[value]
        return known.least, known.most


def _bound_truth(kind: Traits, x: Interval, y: Interval) -> Interval:
    """Return the bounds of a comparison's result: 0 and 1, or the one that it always gives."""
    signs = {s for s, holds in ((-1, x[0] < y[1]), (0, x[0] <= y[1] and y[0] <= x[1]), (1, x[1] > y[0])) if holds}
    true, false = signs & set(kind.compares), signs - set(kind.compares)
    return (0 if false or not true else 1), (1 if true else 0)


def _exclude_truth(bounds: Interval) -> int:
    return (1 if bounds == (0, 0) else 0) | (2 if bounds == (1, 1) else 0)


def _exclude_comparison(c: Condition, bounds: Sequence[Interval]) -> int:
    assert c.op is not None
    if c.op.traits.tests_bit or not all(map(_is_integer, c.operands)):
        return 0
    x, y = bounds
    return _exclude_truth(_bound_truth(c.op.traits, x, y))


def _exclude_remainder(c: Condition, bounds: Sequence[Interval]) -> int:
    low, high = bounds[0]
    return (1 if low >= c.by or high < 0 else 0) | (2 if low >= 0 and high < c.by else 0)


def _exclude_quotient(c: Condition, bounds: Sequence[Interval]) -> int:
    (low, high), up = bounds[0], c.op is not None and c.op.traits.rounds == "up"
    first = c.by if up else c.by - 1  # the largest operand of the first side
    return (1 if low > first else 0) | (2 if high <= first else 0)


def _exclude_bits(c: Condition, bounds: Sequence[Interval]) -> int:
    low, high = bounds[0]
    if low < 0 or c.by <= 0:
        return 0
    lowest = c.by & -c.by
    reaches = (1 << high.bit_length()) - 1  # all bits that the operand can have
    return (2 if high < lowest else 0) | (4 if not reaches & ~c.by else 0)


def _exclude_flips(c: Condition, bounds: Sequence[Interval]) -> int:
    return _exclude_bits(c, bounds) & 2


def _exclude_extremum(c: Condition, bounds: Sequence[Interval]) -> int:
    if c.op is None or not all(map(_is_integer, c.operands)):
        return 0
    mask = 0
    for i, (low, high) in enumerate(bounds):
        other_bounds = [g for j, g in enumerate(bounds) if j != i]
        least = c.op.traits.extremum == "min"
        if any(low >= g[1] if least else high <= g[0] for g in other_bounds):
            mask |= 1 << i
    return mask


_IMPOSSIBLE: dict[str, Callable[[Condition, Sequence[Interval]], int]] = {
    "comparison": _exclude_comparison,
    "truth": lambda c, bounds: 0,
    "remainder": _exclude_remainder,
    "quotient": _exclude_quotient,
    "bits": _exclude_bits,
    "flips": _exclude_flips,
    "extremum": _exclude_extremum,
}


def _is_integer(e: Expr) -> bool:
    return isinstance(e.type, (Scalar, TileType)) and e.type.dtype in (I32, BOOL)


__all__ = ["PossibleSides"]
