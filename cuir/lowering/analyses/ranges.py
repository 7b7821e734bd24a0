"""Ranges of i32 scalars and tiles, and whether arithmetic with them may wrap.

A range has bounds, and says whether a value may be near an end of the 32-bit range. Lengths, counters and places in a
tile are far from the ends: a launch for which arithmetic on these would leave 32 bits on its way to an index is refused
(arguments/index_ranges.py), so arithmetic on them alone does not wrap. Values that are loaded, cast from a float, or
parameters from which no index follows may be any number; arithmetic with them wraps, and its bounds are then unknown
unless the operands' bounds say otherwise. `q - k <= window` limits k once `q - window` is computed, which wraps for a
window of 2^31 - 1.

The bounds of values that a loop carries are a fixed point: an end that still moves after a few rounds is unknown.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xdsl.ir import Block, BlockArgument, SSAValue

from ...checking.fact_solver import Rule, ValueFlow
from ...ops.base import Op
from ...ops.meaning.intervals import ANYTHING, INF, Interval, add_intervals, add_saturating, multiply_intervals
from ...ops.traits import Traits
from ...syntax.types import BOOL, I32
from ..ir import ir_types as types
from ..ir import machine_ops as machine
from ..ir import ops
from ..ir.machine_tiles import Line
from .value_flow import find_sources

FAR = 2**24  # a constant nearer to 0 counts as a length
LEAST, MOST = -(2**31), 2**31 - 1
ROUNDS = 3  # an end that moves more often is unknown


@dataclass(frozen=True)
class Range:
    """The range of a value.

    Attributes:
        least: The lower bound; -INF if it is unknown.
        most: The upper bound; INF if it is unknown.
        low: The value may be near the lower end of the 32-bit range.
        high: The value may be near the upper end.
    """

    least: int = -INF
    most: int = INF
    low: bool = False
    high: bool = False

    @property
    def reaches(self) -> bool:
        """Arithmetic with the value may leave the 32-bit range."""
        return self.low or self.high

    @property
    def small(self) -> bool:
        """Both bounds are known and nearer to 0 than FAR."""
        return self.least > -FAR and self.most < FAR


UNBOUNDED = Range(-INF, INF, True, True)
NEAR = Range()


class Ranges:
    """The ranges of a kernel's i32 values, computed on demand, for dims of at least `shortest`."""

    def __init__(self, kernel: ops.Kernel, shortest: int = 0):
        self._ctas, self._dim = Range(0, kernel.cluster.data - 1), Range(shortest)
        self._flow = ValueFlow[SSAValue, Range](_join_two, _forget_moved_ends, ROUNDS)

    def __getitem__(self, value: SSAValue) -> Range:
        """Return the range of a value; UNBOUNDED for values that are no i32, or of code that does not run."""
        known = self._flow.facts.get(value) if _is_i32(value) else UNBOUNDED
        if known is None:
            self._flow.reach([value], self._describe, _is_carried)
            known = self._flow.solve().get(value, UNBOUNDED)
        return known

    def nonnegative(self, value: SSAValue) -> bool:
        """Return whether a value is certainly not negative."""
        return self[value].least >= 0

    def near_ends(self, value: SSAValue) -> bool:
        """Return whether a value may be near an end of the 32-bit range."""
        return self[value].reaches

    def fits(self, value: SSAValue) -> bool:
        """Return whether a value is i32 arithmetic that stays within 32 bits, so that it need not wrap.

        It does for operands far from the ends, of which products need one that is small.
        """
        op = value.owner
        if not isinstance(op, ops.Apply) or not _is_i32(value):
            return False
        kind = op.kind
        if not (_wraps(kind) or kind.rounds == "up"):
            return False
        operands = [self[a] for a in op.arguments]
        if _wraps(kind) and all(r.least > -INF and r.most < INF for r in operands):
            least, most = _compute_bounds(op.entry, operands)
            return least >= LEAST and most <= MOST
        return not any(r.reaches for r in operands) and (not kind.multiplies or any(r.small for r in operands))

    # ---- how ranges follow from those of other values
    def _describe(self, value: SSAValue) -> Step:
        """Return how the range of a value follows from those of others."""
        op = value.owner
        if not _is_i32(value):
            return _constant_rule(UNBOUNDED), ()
        if isinstance(op, ops.Apply):
            return self._describe_operation(op.entry, op.arguments, value)
        if isinstance(op, ops.Constant):
            return _constant_rule(_make_range(int(op.value), int(op.value))), ()
        if isinstance(op, ops.Parameter):
            return _constant_rule(self._dim if op.dim is not None else NEAR if op.judged is not None else UNBOUNDED), ()
        if isinstance(op, (Block, ops.Loop, ops.Branch)):
            sources = find_sources(value)
            return _describe_argument(value) if sources is None else (_join_sources, sources)
        if isinstance(op, (machine.Quotient, machine.Remainder)):
            return self._describe_operation(op.entry, [op.x, op.y], value)
        if isinstance(op, Line):
            return _line_rule(op.result.type.shape[1]), [op.slope, *([] if op.rows is None else [op.rows])]
        return _constant_rule(UNBOUNDED), ()

    def _describe_operation(self, entry: Op, args: Sequence[SSAValue], result: SSAValue) -> Step:
        kind = entry.traits
        if kind.converts:
            if types.dtype_of(args[0]) == BOOL:
                return _constant_rule(Range(0, 1)), ()
            return _join_sources, args[:1]
        if kind.index_of:
            assert isinstance(result.type, types.TileT)
            return _constant_rule(Range(0, result.type.shape[kind.index_of == "column"] - 1)), ()
        if kind.rank:
            return _constant_rule(self._ctas), ()
        if kind.constant is not None:
            return _constant_rule(Range(kind.constant, kind.constant)), ()
        return _operand_rule(entry), args[1:] if kind.chooses else args


def analyse_ranges(kernel: ops.Kernel) -> Ranges:
    """Compute the ranges of a kernel."""
    return Ranges(kernel)


RangeRule = Rule[Range]
Step = tuple[RangeRule, Sequence[SSAValue]]


def _describe_argument(value: SSAValue) -> Step:
    """Return how the range of a worker's, a work item's or a turn's index follows from those of others."""
    block = value.owner
    assert isinstance(block, Block)
    op = block.parent_op()
    if isinstance(op, ops.Role):
        return _constant_rule(Range(0, op.workers.data - 1)), ()
    if isinstance(op, ops.For):
        return _turn_rule(op.step.data), (op.start, op.stop)
    if isinstance(op, machine.HandOut):
        op = op.parent_op()
    units = op.units.owner if isinstance(op, (ops.ForUnits, machine.Queue)) else None
    while isinstance(units, machine.Queue):
        units = units.units.owner
    return _join_work_item, [units.count] if isinstance(units, ops.Units) else []


def _is_carried(value: SSAValue) -> bool:
    """Return whether a loop carries a value."""
    loop = value.block.parent_op() if isinstance(value, BlockArgument) else None
    return isinstance(loop, ops.Loop) and value is not loop.turn


# ---- rules
def _constant_rule(constant: Range) -> RangeRule:
    return lambda inputs: constant


def _join_sources(inputs: Sequence[Range | None]) -> Range | None:
    """Join the ranges of all sources."""
    ranges = [r for r in inputs if r is not None]
    return _join(ranges) if ranges else None


def _turn_rule(step: int) -> RangeRule:
    """Return the rule of a loop's counter, which is far from the ends whatever bounds it."""

    def rule(inputs: Sequence[Range | None]) -> Range | None:
        start, stop = inputs
        if start is None or stop is None:
            return None
        if step > 0:
            return Range(start.least, max(start.least, add_saturating(stop.most, -1)))
        return Range(min(start.most, add_saturating(stop.least, 1)), start.most)

    return rule


def _join_work_item(inputs: Sequence[Range | None]) -> Range:
    """Return the range of a work item's index, from the number of work items if it is known."""
    counts = [r.most for r in inputs if r is not None]
    return Range(0, max(0, add_saturating(counts[0], -1)) if counts else INF)


def _operand_rule(entry: Op) -> RangeRule:
    def rule(inputs: Sequence[Range | None]) -> Range | None:
        ranges = [r for r in inputs if r is not None]
        return _apply(entry, ranges) if len(ranges) == len(inputs) else None

    return rule


def _line_rule(columns: int) -> RangeRule:
    """Return the rule of multiples of a slope, to which a number per row may be added."""

    def rule(inputs: Sequence[Range | None]) -> Range | None:
        ranges = [r for r in inputs if r is not None]
        if len(ranges) < len(inputs):
            return None
        slope, *rows = ranges
        steps = _apply_arithmetic(multiply_intervals, [slope, Range(0, columns - 1)])
        return _apply_arithmetic(add_intervals, [rows[0], steps]) if rows else steps

    return rule


def _wraps(kind: Traits) -> bool:
    """Return whether an operation is a sum, difference, product or negation."""
    return bool(kind.linear) or kind.multiplies


def _apply(entry: Op, operands: list[Range]) -> Range:
    """Compute the range of an operation on i32 operands of these ranges."""
    kind = entry.traits
    if kind.chooses:
        return _join(operands)
    if kind.repeats or "max" in (kind.reduction, kind.column_reduction):
        return operands[0]
    if _wraps(kind):
        return _apply_arithmetic(lambda *bounds: _evaluate(entry, bounds), operands)
    least, most = _compute_bounds(entry, operands)
    low, high = _compute_ends(kind, operands)
    return _make_range(least, most, low, high)


def _apply_arithmetic(interval: Callable[..., Interval], operands: list[Range]) -> Range:
    """Compute the range of arithmetic that may wrap. interval: of results, for intervals of operands.

    It does not wrap if no operand is near an end, or if the bounds exclude it.
    """
    reaches = any(r.reaches for r in operands)
    if reaches:
        operands = [Range(max(r.least, LEAST), min(r.most, MOST)) for r in operands]
    least, most = interval(*((r.least, r.most) for r in operands))
    below, above = (least < LEAST, most > MOST) if reaches else (LEAST > least > -INF, MOST < most < INF)
    if below or above:
        return UNBOUNDED
    return _make_range(least, most, reaches, reaches)


def _make_range(least: int, most: int, low: bool = True, high: bool = True) -> Range:
    """Return a range with these bounds.

    `low`, `high`: the range may be near the smallest, the largest integer. Callers handle unknown bounds.
    """
    least, most = max(least, -INF), min(most, INF)
    return Range(least, most, low and least <= -FAR, high and most >= FAR)


def _compute_bounds(entry: Op, operands: Sequence[Range]) -> Interval:
    """Return the bounds of an operation's result, as the numbers of mathematics."""
    if entry.traits.magnitude and operands[0].low and operands[0].least <= LEAST:  # -2^31 has no opposite
        return ANYTHING
    return _evaluate(entry, [(r.least, r.most) for r in operands])


def _evaluate(entry: Op, intervals: Sequence[Interval]) -> Interval:
    bounds = entry.evaluate.interval(*intervals) if entry.evaluate is not None else None
    return ANYTHING if bounds is None else bounds


# ---- ends of the 32-bit range that a result may be near
Ends = tuple[bool, bool]


def _all_ends(*operands: Range) -> Ends:
    """Return (low, high), both true if any operand is near an end."""
    reaches = any(r.reaches for r in operands)
    return reaches, reaches


def _quotient_ends(x: Range, y: Range) -> Ends:
    """Return the ends of a quotient.

    It is no further from 0 than the dividend, and on its side if the divisor is positive.
    """
    return (x.low, x.high) if y.least >= 0 else _all_ends(x)


def _compute_ends(kind: Traits, operands: Sequence[Range]) -> Ends:
    if kind.rounds:
        return _quotient_ends(*operands)
    if kind.remainder:
        return _all_ends(operands[1])
    if kind.extremum:
        low, high = (any, all) if kind.extremum == "min" else (all, any)
        return low(r.low for r in operands), high(r.high for r in operands)
    return _all_ends(*operands)


def _join(inputs: Sequence[Range]) -> Range:
    return functools.reduce(_join_two, inputs)


def _forget_moved_ends(old: Range, new: Range) -> Range:
    """Return a range that includes both, and whose ends are those of the old one or unknown."""
    return Range(new.least if new.least == old.least else -INF, new.most if new.most == old.most else INF, new.low, new.high)


def _join_two(a: Range, b: Range) -> Range:
    return Range(min(a.least, b.least), max(a.most, b.most), a.low or b.low, a.high or b.high)


def _is_i32(value: SSAValue) -> bool:
    return isinstance(value.type, (types.ScalarT, types.TileT)) and value.type.element == I32


__all__ = ["UNBOUNDED", "Range", "Ranges", "analyse_ranges"]
