"""Ranges of i32 scalars and tiles, and whether arithmetic with them may wrap.

A range has bounds, and says whether a value may be near an end of the 32-bit range. Lengths, counters and places in a
tile are far from the ends: a launch for which arithmetic on these would leave 32 bits on its way to an index is refused
(calls/index_ranges.py), so arithmetic on them alone does not wrap. Values that are loaded, cast from a float, or
parameters from which no index follows may be any number; arithmetic with them wraps, and its bounds are then unknown
unless the operands' bounds say otherwise. `q - k <= window` limits k once `q - window` is computed, which wraps for a
window of 2^31 - 1.

The bounds of values that a loop carries are a fixed point: an end that still moves after a few rounds is unknown.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xdsl.ir import Block, Operation, SSAValue

from ...ops.traits import DIFFERENCE, NEGATIVE, SUM, Traits
from ...syntax.types import BOOL, I32
from ..ir import ir_types as types
from ..ir import machine_ops as machine
from ..ir import ops
from ..ir.ir_walk import last
from ..ir.machine_tiles import Line
from .fixed_point import Rule, ValueFlow

FAR = 2**24  # a constant nearer to 0 counts as a length
LEAST, MOST = -(2**31), 2**31 - 1
INF = 2**62  # stands for an unknown end
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
    """The ranges of a kernel's i32 values."""

    def __init__(self, kernel: ops.Kernel):
        self._bounds = _Flow(kernel).solve()

    def __getitem__(self, value: SSAValue) -> Range:
        """Return the range of a value; ANYTHING for values that are no i32, or of code that does not run."""
        return self._bounds.get(value, UNBOUNDED)

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
            least, most = _compute_bounds(kind, operands)
            return least >= LEAST and most <= MOST
        return not any(r.reaches for r in operands) and (not kind.multiplies or any(r.small for r in operands))


def analyse_ranges(kernel: ops.Kernel) -> Ranges:
    """Compute the ranges of a kernel."""
    return Ranges(kernel)


RangeRule = Rule[Range]


class _Flow(ValueFlow[Range]):
    """The steps of a kernel's i32 values."""

    def __init__(self, kernel: ops.Kernel):
        super().__init__(_join_two, _forget_moved_ends, ROUNDS)
        self.kernel = kernel
        self.block(kernel.body.block)

    # ---- the steps of a kernel
    def put_i32(self, value: SSAValue, rule: RangeRule, *sources: SSAValue, carried: bool = False) -> None:
        """Add a step if the value is an i32. Sources that are no i32 may be anything."""
        if _is_i32(value):
            self.put(value, rule, sources, carried)
            self.facts.update((source, UNBOUNDED) for source in sources if not _is_i32(source))

    def block(self, block: Block) -> None:
        for op in block.ops:
            self.operation(op)

    def operation(self, op: Operation) -> None:
        if not op.regions:
            self.results(op)
        elif isinstance(op, ops.Role):
            self.put_i32(op.body.block.args[0], _constant_rule(Range(0, op.workers.data - 1)))
            self.block(op.body.block)
        elif isinstance(op, ops.For):
            self.put_i32(op.turn, _turn_rule(op.step.data), op.start, op.stop)
            self.loop(op)
        elif isinstance(op, ops.ForUnits):
            self.unit(op.turn, op.units)
            queue = machine.queue_of(op)
            for word, argument in op.reads:
                assert queue is not None
                self.put_i32(argument, _join_sources, *queue.hand_out.words[word.index - 1 : word.index - 1 + word.copies])
            self.loop(op)
        elif isinstance(op, machine.Queue):
            self.unit(op.hand_out.unit, op.units)
            self.block(op.body.block)
        else:  # a branch of some kind, or a queue's hand_out
            for region in op.regions:
                self.block(region.block)
            if op.results:
                for result, *inputs in zip(op.results, *(last(region).values for region in op.regions), strict=True):
                    self.put_i32(result, _join_sources, *inputs)

    def loop(self, op: ops.Loop) -> None:
        ends = last(op.body).values
        for argument, start, end in zip(op.inner, op.carried, ends, strict=True):
            self.put_i32(argument, _join_sources, start, end, carried=True)
        self.block(op.body.block)
        for result, start, end in zip(op.outputs, op.carried, ends, strict=True):
            self.put_i32(result, _join_sources, start, end)

    def unit(self, number: SSAValue, units: SSAValue) -> None:
        """Add the step of a work item's index. A launch with too many work items is refused."""
        op = units.owner
        while isinstance(op, machine.Queue):
            op = op.units.owner
        self.put_i32(number, _join_work_item, *([op.count] if isinstance(op, ops.Units) else []))

    def results(self, op: Operation) -> None:
        if isinstance(op, ops.Apply):
            if _is_i32(op.result):
                self.apply(op.kind, op.arguments, op.result)
        elif isinstance(op, ops.Constant):
            if _is_i32(op.result):
                self.put_i32(op.result, _constant_rule(_make_range(int(op.value), int(op.value))))
        elif isinstance(op, ops.Parameter):
            self.put_i32(op.result, _constant_rule(Range(0) if op.dim is not None else NEAR if op.judged is not None else UNBOUNDED))
        elif isinstance(op, (machine.Quotient, machine.Remainder)):
            self.apply(op.entry.traits, [op.x, op.y], op.result)
        elif isinstance(op, Line):
            self.put_i32(op.result, _line_rule(op.result.type.shape[1]), op.slope, *([] if op.rows is None else [op.rows]))
        else:
            for result in op.results:
                self.put_i32(result, _constant_rule(UNBOUNDED))

    def apply(self, kind: Traits, args: Sequence[SSAValue], result: SSAValue) -> None:
        if kind.converts:
            if types.dtype_of(args[0]) == BOOL:
                self.put_i32(result, _constant_rule(Range(0, 1)))
            else:
                self.put_i32(result, _join_sources, args[0])
        elif kind.index_of:
            assert isinstance(result.type, types.TileT)
            self.put_i32(result, _constant_rule(Range(0, result.type.shape[kind.index_of == "column"] - 1)))
        elif kind.rank:
            self.put_i32(result, _constant_rule(Range(0, self.kernel.cluster.data - 1)))
        elif kind.constant is not None:
            self.put_i32(result, _constant_rule(Range(kind.constant, kind.constant)))
        else:
            self.put_i32(result, _operand_rule(kind), *(args[1:] if kind.chooses else args))


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
            return Range(start.least, max(start.least, _add_saturating(stop.most, -1)))
        return Range(min(start.most, _add_saturating(stop.least, 1)), start.most)

    return rule


def _join_work_item(inputs: Sequence[Range | None]) -> Range:
    """Return the range of a work item's index, from the number of work items if it is known."""
    counts = [r.most for r in inputs if r is not None]
    return Range(0, max(0, _add_saturating(counts[0], -1)) if counts else INF)


def _operand_rule(kind: Traits) -> RangeRule:
    def rule(inputs: Sequence[Range | None]) -> Range | None:
        ranges = [r for r in inputs if r is not None]
        return _apply(kind, ranges) if len(ranges) == len(inputs) else None

    return rule


def _line_rule(columns: int) -> RangeRule:
    """Return the rule of multiples of a slope, to which a number per row may be added."""

    def rule(inputs: Sequence[Range | None]) -> Range | None:
        ranges = [r for r in inputs if r is not None]
        if len(ranges) < len(inputs):
            return None
        slope, *rows = ranges
        steps = _apply_arithmetic(Traits(multiplies=True), [slope, Range(0, columns - 1)])
        return _apply_arithmetic(Traits(linear=SUM), [rows[0], steps]) if rows else steps

    return rule


def _wraps(kind: Traits) -> bool:
    """Return whether an operation is a sum, difference, product or negation."""
    return bool(kind.linear) or kind.multiplies


def _apply(kind: Traits, operands: list[Range]) -> Range:
    """Compute the range of an operation on i32 operands of these ranges."""
    if kind.chooses:
        return _join(operands)
    if kind.repeats or "max" in (kind.reduction, kind.column_reduction):
        return operands[0]
    if _wraps(kind):
        return _apply_arithmetic(kind, operands)
    if not _is_bounded(kind):
        return UNBOUNDED if any(r.reaches for r in operands) else NEAR
    least, most = _compute_bounds(kind, operands)
    low, high = _compute_ends(kind, operands)
    return _make_range(least, most, low, high)


def _apply_arithmetic(kind: Traits, operands: list[Range]) -> Range:
    """Compute the range of arithmetic that may wrap.

    It does not wrap if no operand is near an end, or if the bounds exclude it.
    """
    reaches = any(r.reaches for r in operands)
    if reaches:
        operands = [Range(max(r.least, LEAST), min(r.most, MOST)) for r in operands]
    least, most = _compute_bounds(kind, operands)
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


# ---- bounds: the numbers of mathematics
Bounds = tuple[int, int]


def _add_saturating(a: int, b: int) -> int:
    return a if abs(a) >= INF else max(-INF, min(INF, a + b))


def _bound_sum(x: Range, y: Range) -> Bounds:
    return _add_saturating(x.least, y.least) if y.least > -INF else -INF, _add_saturating(x.most, y.most) if y.most < INF else INF


def _negate(x: Range) -> Range:
    return Range(-x.most, -x.least, x.high, x.low)


def _bound_product(x: Range, y: Range) -> Bounds:
    corners = [a * b for a, b in itertools.product((x.least, x.most), (y.least, y.most))]
    return max(min(corners), -INF), min(max(corners), INF)


def _quotient_bounds(round_up: bool) -> Callable[[Range, Range], Bounds]:
    def divide(a: int, b: int) -> int:
        if abs(a) >= INF:
            return a
        if b >= INF:  # as by a huge divisor
            return int(a > 0) if round_up else -int(a < 0)
        return -(-a // b) if round_up else a // b

    def bounds(x: Range, y: Range) -> Bounds:
        if y.least < 0:  # the quotient may be -x
            most = max(abs(x.least), abs(x.most))
            return -most, most
        corners = [divide(a, b) for a, b in itertools.product((x.least, x.most), (max(1, y.least), max(1, y.most)))]
        return min(corners), max(corners)

    return bounds


_DOWN, _UP = _quotient_bounds(round_up=False), _quotient_bounds(round_up=True)


def _bound_remainder(x: Range, y: Range) -> Bounds:
    """Bound a remainder, which has the sign of the divisor."""
    least, most = min(0, _add_saturating(y.least, 1)), max(0, _add_saturating(y.most, -1))
    return (least, min(x.most, most)) if x.least >= 0 and y.least >= 0 else (least, most)


def _bound_magnitude(x: Range) -> Bounds:
    if x.low and x.least <= LEAST:  # -2^31 has no opposite
        return -INF, INF
    return 0 if x.least <= 0 <= x.most else min(abs(x.least), abs(x.most)), max(abs(x.least), abs(x.most))


def _bound_and(*operands: Range) -> Bounds:
    most = [r.most for r in operands if r.least >= 0]
    return (0, min(most)) if most else (-INF, INF)


def _bound_or(x: Range, y: Range) -> Bounds:
    if min(x.least, y.least) < 0:
        return -INF, INF
    most = max(x.most, y.most)
    return 0, INF if most >= INF else (1 << most.bit_length()) - 1


def _is_bounded(kind: Traits) -> bool:
    """Return whether the result's bounds follow from the operands'."""
    bits = kind.decided_by is not None or kind.involutive  # one by one
    return _wraps(kind) or bits or kind.divides_integers or kind.magnitude or kind.extremum is not None


def _compute_bounds(kind: Traits, operands: Sequence[Range]) -> Bounds:
    x, y = operands[0], operands[-1]
    if kind.linear == SUM:
        return _bound_sum(x, y)
    if kind.linear == DIFFERENCE:
        return _bound_sum(x, _negate(y))
    if kind.linear == NEGATIVE:
        return -x.most, -x.least
    if kind.multiplies:
        return _bound_product(x, y)
    if kind.rounds:
        return (_UP if kind.rounds == "up" else _DOWN)(x, y)
    if kind.remainder:
        return _bound_remainder(x, y)
    if kind.extremum:
        extreme = min if kind.extremum == "min" else max
        return extreme(r.least for r in operands), extreme(r.most for r in operands)
    if kind.magnitude:
        return _bound_magnitude(x)
    if kind.complements:  # -x - 1
        return _add_saturating(-x.most, -1), _add_saturating(-x.least, -1)
    return _bound_and(x, y) if kind.decided_by is False else _bound_or(x, y)


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


__all__ = ["Range", "Ranges", "analyse_ranges"]
