"""Where i32 scalars and tiles lie: bounds, and whether a value may be near an end of the 32-bit range, so that arithmetic with it may wrap.

Lengths, counters and places in a tile are far from the ends: a launch for which arithmetic on these would leave 32 bits on its way to an index is refused
(calls/index_ranges.py), so what is made of them alone does not wrap. What is loaded, cast from a float, or a parameter from which no index follows may be any
number; arithmetic with it wraps, and its bounds are then unknown unless the operands' bounds say otherwise. `q - k <= window` is a limit on k once
`q - window` is worked out, which wraps for a window of 2^31 - 1.

The bounds of what a loop carries are a fixed point: an end that still moves after a few rounds is unknown.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from xdsl.ir import Block, Operation, SSAValue

from ...ops.traits import DIFFERENCE, NEGATIVE, SUM, Traits
from ...syntax.types import BOOL, I32
from ..ir import machine, ops, types
from ..ir.machine_tiles import Line
from ..ir.walk import last

FAR = 2**24  # a known number that is nearer to 0 is as good as a length
LEAST, MOST = -(2**31), 2**31 - 1
INF = 2**62  # stands for an end that is unknown
ROUNDS = 3  # that an end may move before it is unknown


@dataclass(frozen=True)
class Range:
    """Where a value lies: `least` and `most` (-INF, INF: unknown), and whether it may be near the lower (`low`) or upper (`high`) end of the 32-bit range."""

    least: int = -INF
    most: int = INF
    low: bool = False
    high: bool = False

    @property
    def reaches(self) -> bool:
        """Whether arithmetic with it may leave the range."""
        return self.low or self.high

    @property
    def small(self) -> bool:
        return self.least > -FAR and self.most < FAR


ANYTHING = Range(-INF, INF, True, True)
NEAR = Range()


class Ranges:
    """The ranges of a kernel's i32 values."""

    def __init__(self, kernel: ops.Kernel):
        self._bounds = _Flow(kernel).bounds

    def __getitem__(self, value: SSAValue) -> Range:
        """Nothing is known of values that are no i32, or of code that does not run."""
        return self._bounds.get(value, ANYTHING)

    def nonnegative(self, value: SSAValue) -> bool:
        """Whether it is certainly not negative."""
        return self[value].least >= 0

    def near_ends(self, value: SSAValue) -> bool:
        """Whether it may be near an end of the 32-bit range."""
        return self[value].reaches

    def fits(self, value: SSAValue) -> bool:
        """Whether it is i32 arithmetic that stays within 32 bits, so that it needs no wrapping: of values far from the ends, and of products one by a known number."""
        op = value.owner
        if not isinstance(op, ops.Apply) or not _is_i32(value):
            return False
        of = op.kind
        if not (_wraps(of) or of.rounds == "up"):
            return False
        given = [self[a] for a in op.arguments]
        if _wraps(of) and all(r.least > -INF and r.most < INF for r in given):
            least, most = _bounds(of, given)
            return least >= LEAST and most <= MOST
        return not any(r.reaches for r in given) and (not of.multiplies or any(r.small for r in given))


def ranges(kernel: ops.Kernel) -> Ranges:
    return Ranges(kernel)


Rule = Callable[[Sequence[Range | None]], Range | None]  # of the ranges of what a value is made of; None: no path has come there


@dataclass(eq=False, slots=True)
class _Step:
    """A value that may be what `rule` makes of its sources. `due`: whether one of these has changed since the step was last taken."""

    value: SSAValue
    rule: Rule
    sources: tuple[SSAValue, ...]
    carried: bool
    due: bool = True
    moves: int = 0  # of what is carried: how often it changed


class _Flow:
    """The data flow: rounds over the steps, in the order of the text, until none is due."""

    def __init__(self, kernel: ops.Kernel):
        self.kernel = kernel
        self.bounds: dict[SSAValue, Range] = {}  # none yet: no path has come there
        self.steps: list[_Step] = []
        self.readers: dict[SSAValue, list[_Step]] = {}
        self.block(kernel.body.block)
        while any(step.due for step in self.steps):
            for step in self.steps:
                if step.due:
                    self.take(step)

    def take(self, step: _Step) -> None:
        step.due = False
        given = step.rule([self.bounds.get(s) for s in step.sources])
        if given is None:
            return
        old = self.bounds.get(step.value)
        if given == old or (new := _join([given, old]) if old else given) == old:
            return
        if old and step.carried:
            step.moves += 1
            if step.moves > ROUNDS:
                new = Range(new.least if new.least == old.least else -INF, new.most if new.most == old.most else INF, new.low, new.high)
        self.bounds[step.value] = new
        for reader in self.readers.get(step.value, ()):
            reader.due = True

    # ---- the steps of a kernel
    def put(self, value: SSAValue, rule: Rule, *sources: SSAValue, carried: bool = False) -> None:
        """A step, if the value is an i32. Sources that are none may be anything."""
        if not _is_i32(value):
            return
        step = _Step(value, rule, sources, carried)
        self.steps.append(step)
        for source in sources:
            if _is_i32(source):
                self.readers.setdefault(source, []).append(step)
            else:
                self.bounds[source] = ANYTHING

    def block(self, block: Block) -> None:
        for op in block.ops:
            self.operation(op)

    def operation(self, op: Operation) -> None:
        if not op.regions:
            self.results(op)
        elif isinstance(op, ops.Role):
            self.put(op.body.block.args[0], _always(Range(0, op.workers.data - 1)))
            self.block(op.body.block)
        elif isinstance(op, ops.For):
            self.put(op.turn, _turn(op.step.data), op.start, op.stop)
            self.loop(op)
        elif isinstance(op, ops.ForUnits):
            self.unit(op.turn, op.units)
            queue = machine.queue_of(op)
            for word, inside in op.reads:
                assert queue is not None
                self.put(inside, _any_of, *queue.hand_out.words[word.index - 1 : word.index - 1 + word.copies])
            self.loop(op)
        elif isinstance(op, machine.Queue):
            self.unit(op.hand_out.unit, op.units)
            self.block(op.body.block)
        else:  # a branch of some kind, or what a queue hands out
            for region in op.regions:
                self.block(region.block)
            if op.results:
                for result, *given in zip(op.results, *(last(region).values for region in op.regions), strict=True):
                    self.put(result, _any_of, *given)

    def loop(self, op: ops.Loop) -> None:
        ends = last(op.body).values
        for inside, start, following in zip(op.inner, op.carried, ends, strict=True):
            self.put(inside, _any_of, start, following, carried=True)
        self.block(op.body.block)
        for result, start, following in zip(op.outputs, op.carried, ends, strict=True):
            self.put(result, _any_of, start, following)

    def unit(self, number: SSAValue, units: SSAValue) -> None:
        """The number of a unit of work. A launch with too many units is refused."""
        op = units.owner
        while isinstance(op, machine.Queue):
            op = op.units.owner
        self.put(number, _unit, *([op.count] if isinstance(op, ops.Units) else []))

    def results(self, op: Operation) -> None:
        if isinstance(op, ops.Apply):
            if _is_i32(op.result):
                self.apply(op.kind, op.arguments, op.result)
        elif isinstance(op, ops.Constant):
            if _is_i32(op.result):
                self.put(op.result, _always(_of_bounds(int(op.value), int(op.value))))
        elif isinstance(op, ops.Parameter):
            self.put(op.result, _always(Range(0) if op.dim is not None else NEAR if op.judged is not None else ANYTHING))
        elif isinstance(op, (machine.Quotient, machine.Remainder)):
            self.apply(op.entry.traits, [op.x, op.y], op.result)
        elif isinstance(op, Line):
            self.put(op.result, _line(op.result.type.shape[1]), op.slope, *([] if op.rows is None else [op.rows]))
        else:
            for result in op.results:
                self.put(result, _always(ANYTHING))

    def apply(self, of: Traits, args: Sequence[SSAValue], result: SSAValue) -> None:
        if of.converts:
            if types.dtype_of(args[0]) == BOOL:
                self.put(result, _always(Range(0, 1)))
            else:
                self.put(result, _any_of, args[0])
        elif of.index_of:
            assert isinstance(result.type, types.TileT)
            self.put(result, _always(Range(0, result.type.shape[of.index_of == "column"] - 1)))
        elif of.rank:
            self.put(result, _always(Range(0, self.kernel.cluster.data - 1)))
        elif of.constant is not None:
            self.put(result, _always(Range(of.constant, of.constant)))
        else:
            self.put(result, _made_by(of), *(args[1:] if of.chooses else args))


# ---- rules
def _always(known: Range) -> Rule:
    return lambda given: known


def _any_of(given: Sequence[Range | None]) -> Range | None:
    """One of the sources."""
    known = [r for r in given if r is not None]
    return _join(known) if known else None


def _turn(step: int) -> Rule:
    """The number of a turn is a counter: far from the ends, whatever bounds it."""

    def rule(given: Sequence[Range | None]) -> Range | None:
        start, stop = given
        if start is None or stop is None:
            return None
        if step > 0:
            return Range(start.least, max(start.least, _plus(stop.most, -1)))
        return Range(min(start.most, _plus(stop.least, 1)), start.most)

    return rule


def _unit(given: Sequence[Range | None]) -> Range:
    """The number of a unit, of which there are as many as the source says, if there is one."""
    counts = [r.most for r in given if r is not None]
    return Range(0, max(0, _plus(counts[0], -1)) if counts else INF)


def _made_by(of: Traits) -> Rule:
    def rule(given: Sequence[Range | None]) -> Range | None:
        known = [r for r in given if r is not None]
        return _applied(of, known) if len(known) == len(given) else None

    return rule


def _line(columns: int) -> Rule:
    """Multiples of a slope, perhaps behind a number a row."""

    def rule(given: Sequence[Range | None]) -> Range | None:
        known = [r for r in given if r is not None]
        if len(known) < len(given):
            return None
        slope, *rows = known
        steps = _arithmetic(Traits(multiplies=True), [slope, Range(0, columns - 1)])
        return _arithmetic(Traits(linear=SUM), [rows[0], steps]) if rows else steps

    return rule


def _wraps(of: Traits) -> bool:
    """Whether it is the sum, difference, product or negative of numbers."""
    return bool(of.linear) or of.multiplies


def _applied(of: Traits, given: list[Range]) -> Range:
    """An operation on i32 of known ranges."""
    if of.chooses:
        return _join(given)
    if of.repeats or "max" in (of.reduction, of.column_reduction):
        return given[0]
    if _wraps(of):
        return _arithmetic(of, given)
    if not _bounded(of):
        return ANYTHING if any(r.reaches for r in given) else NEAR
    least, most = _bounds(of, given)
    low, high = _ends(of, given)
    return _of_bounds(least, most, low, high)


def _arithmetic(of: Traits, given: list[Range]) -> Range:
    """What may wrap: it does not if no operand is near an end, or if the bounds say so."""
    reaches = any(r.reaches for r in given)
    if reaches:
        given = [Range(max(r.least, LEAST), min(r.most, MOST)) for r in given]
    least, most = _bounds(of, given)
    below, above = (least < LEAST, most > MOST) if reaches else (LEAST > least > -INF, MOST < most < INF)
    if below or above:
        return ANYTHING
    return _of_bounds(least, most, reaches, reaches)


def _of_bounds(least: int, most: int, low: bool = True, high: bool = True) -> Range:
    """A range with these bounds, near an end only where they allow it. Unknown bounds are the caller's to judge."""
    least, most = max(least, -INF), min(most, INF)
    return Range(least, most, low and least <= -FAR, high and most >= FAR)


# ---- bounds: the numbers of mathematics
Bounds = tuple[int, int]


def _plus(a: int, b: int) -> int:
    return a if abs(a) >= INF else max(-INF, min(INF, a + b))


def _sum(x: Range, y: Range) -> Bounds:
    return _plus(x.least, y.least) if y.least > -INF else -INF, _plus(x.most, y.most) if y.most < INF else INF


def _negated(x: Range) -> Range:
    return Range(-x.most, -x.least, x.high, x.low)


def _product(x: Range, y: Range) -> Bounds:
    corners = [a * b for a, b in itertools.product((x.least, x.most), (y.least, y.most))]
    return max(min(corners), -INF), min(max(corners), INF)


def _by(round_up: bool) -> Callable[[Range, Range], Bounds]:
    def divided(a: int, b: int) -> int:
        if abs(a) >= INF:
            return a
        if b >= INF:  # as if by very much
            return int(a > 0) if round_up else -int(a < 0)
        return -(-a // b) if round_up else a // b

    def bounds(x: Range, y: Range) -> Bounds:
        if y.least < 0:  # then the quotient may be -x
            most = max(abs(x.least), abs(x.most))
            return -most, most
        corners = [divided(a, b) for a, b in itertools.product((x.least, x.most), (max(1, y.least), max(1, y.most)))]
        return min(corners), max(corners)

    return bounds


_DOWN, _UP = _by(round_up=False), _by(round_up=True)


def _remainder(x: Range, y: Range) -> Bounds:
    """It has the sign of the divisor."""
    least, most = min(0, _plus(y.least, 1)), max(0, _plus(y.most, -1))
    return (least, min(x.most, most)) if x.least >= 0 and y.least >= 0 else (least, most)


def _magnitude(x: Range) -> Bounds:
    if x.low and x.least <= LEAST:  # -2^31 has no opposite
        return -INF, INF
    return 0 if x.least <= 0 <= x.most else min(abs(x.least), abs(x.most)), max(abs(x.least), abs(x.most))


def _and(*given: Range) -> Bounds:
    most = [r.most for r in given if r.least >= 0]
    return (0, min(most)) if most else (-INF, INF)


def _or(x: Range, y: Range) -> Bounds:
    if min(x.least, y.least) < 0:
        return -INF, INF
    most = max(x.most, y.most)
    return 0, INF if most >= INF else (1 << most.bit_length()) - 1


def _bounded(of: Traits) -> bool:
    """Whether the result's bounds follow from the operands'."""
    bits = of.decided_by is not None or of.involutive  # one by one
    return _wraps(of) or bits or of.divides_integers or of.magnitude or of.extremum is not None


def _bounds(of: Traits, given: Sequence[Range]) -> Bounds:
    x, y = given[0], given[-1]
    if of.linear == SUM:
        return _sum(x, y)
    if of.linear == DIFFERENCE:
        return _sum(x, _negated(y))
    if of.linear == NEGATIVE:
        return -x.most, -x.least
    if of.multiplies:
        return _product(x, y)
    if of.rounds:
        return (_UP if of.rounds == "up" else _DOWN)(x, y)
    if of.remainder:
        return _remainder(x, y)
    if of.extremum:
        extreme = min if of.extremum == "min" else max
        return extreme(r.least for r in given), extreme(r.most for r in given)
    if of.magnitude:
        return _magnitude(x)
    if of.complements:  # -x - 1
        return _plus(-x.most, -1), _plus(-x.least, -1)
    return _and(x, y) if of.decided_by is False else _or(x, y)


# ---- ends of the 32-bit range that a result may be near
Ends = tuple[bool, bool]


def _all_ends(*given: Range) -> Ends:
    """Near both ends if any operand is near one."""
    reaches = any(r.reaches for r in given)
    return reaches, reaches


def _of_quotient(x: Range, y: Range) -> Ends:
    """No further from 0 than the dividend, on its side if the divisor is positive."""
    return (x.low, x.high) if y.least >= 0 else _all_ends(x)


def _ends(of: Traits, given: Sequence[Range]) -> Ends:
    if of.rounds:
        return _of_quotient(*given)
    if of.remainder:
        return _all_ends(given[1])
    if of.extremum:
        low, high = (any, all) if of.extremum == "min" else (all, any)
        return low(r.low for r in given), high(r.high for r in given)
    return _all_ends(*given)


def _join(given: Sequence[Range]) -> Range:
    return functools.reduce(_either, given)


def _either(a: Range, b: Range) -> Range:
    return Range(min(a.least, b.least), max(a.most, b.most), a.low or b.low, a.high or b.high)


def _is_i32(value: SSAValue) -> bool:
    return isinstance(value.type, (types.ScalarT, types.TileT)) and value.type.element == I32


__all__ = ["Range", "Ranges", "ranges"]
