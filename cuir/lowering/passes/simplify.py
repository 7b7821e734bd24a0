"""Brings equal values to one form: constants folded and put last, comparisons turned one way, negations gone, choices that are none removed.

Exact: no result changes, not even the last bit of a float (a NaN may look different). What a program's author may write this way or that gives the same IR.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence

from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from ...ops import meaning
from ...ops.base import Op
from ...ops.meaning import DivisionByZero
from ...ops.traits import AT_MOST, BELOW, DIFFERENCE, EQUAL, LESS, SUM, UNEQUAL, Traits, opposite, turned
from ...syntax.types import BOOL, F32, I32
from ..ir import make, ops
from ..ir.types import ScalarT, TileT, dtype_of, is_scalar, scalar
from ..ir.walk import last, operations
from .rewriting import before, inline, insert, move_body, replace

Rule = Callable[[ops.Apply], Operation | SSAValue | None]


def run(kernel: ops.Kernel) -> None:
    _Simplify().block(kernel.body.block)


class _Simplify:
    def block(self, block: Block) -> None:
        for op in operations(block):
            if op.parent is not None:
                self.operation(op)

    def operation(self, op: Operation) -> None:
        if isinstance(op, ops.Apply):
            self.apply(op)
            return
        if isinstance(op, ops.If):
            self._if(op)
            return
        if isinstance(op, ops.For) and _without_turns(op):
            replace(op, op.carried)
            return
        for region in op.regions:
            self.block(region.block)
        if isinstance(op, ops.Branch):
            _alike(op)

    def apply(self, op: ops.Apply) -> None:
        """Applies rules to a fixed point, following an operation through what replaces it."""
        new: Operation | None = op
        while isinstance(new, ops.Apply):
            simpler = self._rule(new)
            if simpler is None:
                return
            if isinstance(simpler, Operation):
                insert(new, simpler)
                replace(new, simpler.results)
                new = simpler
            else:
                replace(new, [simpler])
                return

    def _rule(self, op: ops.Apply) -> Operation | SSAValue | None:
        for rule in _rules(op.op):
            simpler = rule(op)
            if simpler is not None:
                return simpler
        return None

    # ---- branches
    def _if(self, op: ops.If) -> None:
        test = op.condition.owner
        if isinstance(test, ops.Apply) and test.kind.complements:
            op = self._turned(op, test.arguments[0])
            test = op.condition.owner
        if isinstance(test, ops.Apply) and test.kind.compares == UNEQUAL:
            op = self._turned(op, insert(op, make.compare(EQUAL, test.arguments, scalar(BOOL))))
        if isinstance(test, ops.Apply) and test.kind.compares == AT_MOST and dtype_of(test.arguments[0]) == I32:
            op = self._turned(op, insert(op, make.compare(LESS, test.arguments[::-1], scalar(BOOL))))
        value = ops.known(op.condition)
        if value is not None:
            region = op.then if value else op.orelse
            self.block(region.block)
            replace(op, inline(region.block, op))
            return
        for region in op.regions:
            self.block(region.block)
        _alike(op)

    def _turned(self, op: ops.If, condition: SSAValue) -> ops.If:
        """The branch on the opposite condition."""
        new = ops.branch(condition, move_body(op.orelse), move_body(op.then))
        before(op, new)
        replace(op, new.results)
        return new


def _without_turns(loop: ops.For) -> bool:
    """Whether it is known that a loop has no turn."""
    start, stop = ops.known(loop.start), ops.known(loop.stop)
    return start is not None and stop is not None and not range(int(start), int(stop), loop.step.data)


def _alike(op: ops.Branch) -> None:
    """What both sides of a branch yield needs no branch."""
    for result, a, b in zip(op.results, last(op.then).values, last(op.orelse).values, strict=True):
        if a is b or (same_number(a, b) and not _inside(a, op)):
            result.replace_all_uses_with(a)


def _inside(value: SSAValue, op: Operation) -> bool:
    owner: object = value.owner
    while owner is not None:
        if owner is op:
            return True
        owner = owner.parent_op()  # type: ignore[attr-defined]
    return False


def _constant_like(value: int | float | bool, op: ops.Apply) -> Operation:
    """A known number in the place of a scalar or a tile."""
    t = op.result.type
    assert isinstance(t, (ScalarT, TileT))
    number = ops.constant(value, t.element)
    if isinstance(t, ScalarT):
        return number
    return make.full(insert(op, number), t)


def number(value: SSAValue) -> int | float | bool | None:
    """The known number that a scalar, or every element of a tile, is."""
    owner = value.owner
    if isinstance(owner, ops.Apply) and owner.kind.repeats:
        value = owner.arguments[0]
    return ops.known(value)


def same_number(a: SSAValue, b: SSAValue) -> bool:
    """Whether both are one known number, its sign included: 0.0 is not -0.0."""
    return number(a) is not None and repr(number(a)) == repr(number(b))


# ---- rules: what an operation may be replaced by, or None
def _folded(op: ops.Apply) -> Operation | None:
    """Of known numbers the result, where all evaluators have the same bits."""
    numbers = list[int | float | bool]()
    for argument in op.arguments:
        if (n := number(argument)) is None:
            return None
        numbers.append(n)
    if not numbers:
        return None
    entry = op.entry
    assert entry.evaluate is not None
    dtype, result = dtype_of(op.arguments[-1]), dtype_of(op.result)
    if dtype not in (I32, F32, BOOL) or result not in (I32, F32, BOOL):
        return None
    function = entry.evaluate.scalar(dtype)
    try:
        if entry.traits.converts:
            return _constant_like(meaning.cast(numbers[0], dtype, result), op)
        return None if function is None else _constant_like(function(*numbers), op)
    except (DivisionByZero, OverflowError):
        return None


def _spread(op: ops.Apply) -> Operation | None:
    """A number in the place of a tile of it, where another operand gives the result its shape."""
    t = op.result.type
    if not isinstance(t, TileT):
        return None
    made = [ops.kind_of(a).repeats is not None for a in op.arguments]
    if not any(made):
        return None
    kept = [a.type.shape for a, m in zip(op.arguments, made, strict=True) if not m and isinstance(a.type, TileT)]
    if not kept or (max(r for r, _ in kept), max(c for _, c in kept)) != t.shape:
        return None
    if op.kind.chooses and made[0]:
        return None
    return make.like(op, [a.owner.operands[0] if m else a for a, m in zip(op.arguments, made, strict=True)])  # type: ignore[union-attr]


def _rank(value: SSAValue) -> int:
    """Known numbers last, parameters before them, then elements read from memory; what is worked out first."""
    if number(value) is not None:
        return 3
    if isinstance(value.owner, ops.Parameter) or isinstance(value, BlockArgument):
        return 2
    return int(isinstance(value.owner, ops.Perform) and value.owner.kind.indexed)


def _ordered(op: ops.Apply) -> Operation | None:
    of = op.kind
    if turned(of.compares) in BELOW:  # a > b is b < a
        return _compared(op, turned(of.compares), op.arguments[::-1])
    if of.commutative and _rank(op.arguments[0]) > _rank(op.arguments[1]):
        return make.like(op, op.arguments[::-1])
    return None


def _compared(op: ops.Apply, signs: tuple[int, ...], operands: Sequence[SSAValue]) -> Operation:
    return make.compare(signs, operands, op.result.type, op.exact is not None)


def _not(op: ops.Apply) -> Operation | SSAValue | None:
    inner = op.arguments[0].owner
    if dtype_of(op.arguments[0]) != BOOL or not isinstance(inner, ops.Apply):
        return None
    of = inner.kind
    if of.complements and dtype_of(inner.arguments[0]) == BOOL:
        return inner.arguments[0]
    if of.compares in (EQUAL, UNEQUAL):
        return _compared(op, opposite(of.compares), inner.arguments)
    if of.compares in BELOW and dtype_of(inner.arguments[0]) in (I32, BOOL):  # of integers not (a < b) is b <= a
        return _compared(op, turned(opposite(of.compares)), inner.arguments[::-1])
    # the opposites of comparisons are comparisons, and limits of one direction meet
    if of.decided_by is not None and dtype_of(inner.result) == BOOL:
        sides = [insert(op, make.of_kind(op, [x], x.type)) for x in inner.arguments]
        return make.dual(inner, sides, op.result.type, op.exact is not None)
    return None


def _choice(op: ops.Apply) -> Operation | SSAValue | None:
    """Of equal values, by a known or a negated condition."""
    c, x, y = op.arguments
    same_type = x.type == op.result.type
    if x is y and same_type:
        return x
    value = number(c)
    if value is not None:
        chosen = x if value else y
        return chosen if chosen.type == op.result.type else None
    test = c.owner
    if not isinstance(test, ops.Apply):
        return None
    of = test.kind
    if of.complements:
        return make.like(op, [test.arguments[0], y, x])
    if of.compares == UNEQUAL:
        return make.like(op, [insert(op, make.compare(EQUAL, test.arguments, test.result.type)), y, x])
    if of.compares == AT_MOST and dtype_of(test.arguments[0]) == I32 and number(x) is not None and number(y) is None:
        return make.like(op, [insert(op, make.compare(LESS, test.arguments[::-1], test.result.type)), y, x])
    return None


def _neutral(value: int, keeps: Sequence[int] = (0, 1)) -> Rule:
    """x op value is x, of integers; `keeps`: which operands may be the value."""

    def rule(op: ops.Apply) -> SSAValue | None:
        if dtype_of(op.result) != I32:
            return None
        for i in keeps:
            x, y = op.arguments[1 - i] if i == 0 else op.arguments[0], op.arguments[0] if i == 0 else op.arguments[1]
            if number(y) == value and x.type == op.result.type:
                return x
        return None

    return rule


def _sum_of_constants(op: ops.Apply) -> Operation | None:
    """(x + c) + d is x + (c + d) of integers, which wrap; a known number is subtracted by adding its negative."""
    if dtype_of(op.result) != I32:
        return None
    x, y = op.arguments
    d = number(y)
    if d is None or not is_scalar(y):
        return None
    t, exact = op.result.type, op.exact is not None
    if op.kind.linear == DIFFERENCE:
        return make.add(x, insert(op, ops.constant(meaning.wrap(-int(d)), I32)), t, exact)
    if ops.kind_of(x).linear != SUM:
        return None
    first, second = x.owner.operands  # type: ignore[union-attr]
    if not is_scalar(second) or (c := number(second)) is None or first.type != t:
        return None
    return make.add(first, insert(op, ops.constant(meaning.wrap(int(c) + int(d)), I32)), t, exact)


def _times_zero(op: ops.Apply) -> Operation | None:
    if dtype_of(op.result) == I32 and 0 in (number(op.arguments[0]), number(op.arguments[1])):
        return _constant_like(0, op)
    return None


def _logic(op: ops.Apply) -> Operation | SSAValue | None:
    """Truth values joined with themselves and with known ones."""
    x, y = op.arguments
    if dtype_of(op.result) != BOOL:
        return None
    if x is y:
        return x
    value = number(y)
    if value is None:
        return None
    decided = op.kind.decided_by
    if bool(value) is decided:
        return _constant_like(decided, op)
    return x if x.type == op.result.type else None


def _extreme(op: ops.Apply) -> Operation | SSAValue | None:
    """The least or greatest of equal operands; of known ones folded together."""
    x, y = op.arguments
    if x is y:
        return x
    inner, d = x.owner, number(y)
    if d is not None and is_scalar(y) and isinstance(inner, ops.Apply) and inner.op == op.op and is_scalar(inner.arguments[1]):
        c = number(inner.arguments[1])
        function = op.entry.evaluate.scalar(dtype_of(y)) if op.entry.evaluate else None
        if c is not None and function is not None and inner.arguments[0].type == op.result.type:
            return make.like(op, [inner.arguments[0], insert(op, ops.constant(function(c, d), dtype_of(y)))])
    return None


def _cast(op: ops.Apply) -> SSAValue | None:
    return op.arguments[0] if op.arguments[0].type == op.result.type else None


def _constant(op: ops.Apply) -> Operation:
    value = op.kind.constant
    assert value is not None
    return _constant_like(value, op)


def _vote(op: ops.Apply) -> Operation | None:
    """A vote on what is known."""
    value = number(op.arguments[0])
    return None if value is None else _constant_like(value, op)


def _times_one(op: ops.Apply) -> SSAValue | None:
    """x * 1 and x / 1 of floats."""
    x, y = op.arguments
    return x if dtype_of(op.result).is_float and number(y) == 1 and x.type == op.result.type else None


def _by_one(op: ops.Apply) -> Operation | SSAValue | None:
    if number(op.arguments[1]) != 1:
        return None
    if op.kind.remainder:
        return _constant_like(0, op)
    return op.arguments[0] if op.arguments[0].type == op.result.type else None


def _of_all(entry: Op) -> Iterator[Rule]:
    """The rules for operations of many kinds."""
    of = entry.traits
    if entry.evaluate is not None and not entry.reduces:
        if entry.evaluate.rounded:
            yield _folded
        yield _spread
    if of.commutative or turned(of.compares) in BELOW:
        yield _ordered


def _of_traits(of: Traits) -> tuple[Rule, ...]:
    if of.linear in (SUM, DIFFERENCE):
        return _neutral(0, [i for i in (0, 1) if of.linear[1 - i] == 1]), _sum_of_constants
    if of.multiplies:
        return _neutral(1), _times_zero, _times_one
    if of.divides_floats:
        return (_times_one,)
    if of.divides_integers:
        return (_by_one,)
    if of.decided_by is not None:
        return (_logic,)
    if of.constant is not None:
        return (_constant,)
    rules: tuple[tuple[object, Rule], ...] = (
        (of.complements, _not), (of.chooses, _choice), (of.votes, _vote), (of.extremum, _extreme), (of.converts, _cast),
    )  # fmt: skip
    return tuple(rule for holds, rule in rules if holds)


@functools.cache
def _rules(primitive: str) -> tuple[Rule, ...]:
    """The rules for a primitive, in the order in which they are tried."""
    entry = ops.entry(primitive)
    return (*_of_all(entry), *_of_traits(entry.traits))


__all__ = ["number", "run", "same_number"]
