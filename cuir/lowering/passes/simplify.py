"""Canonicalise: fold constants, order operands and comparisons, remove negations and selects.

Results keep every bit, except for the bits of a NaN.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence

from xdsl.ir import Block, Operation, SSAValue

from ...ops import meaning
from ...ops.base import Op
from ...ops.meaning import DivisionByZero
from ...ops.traits import AT_MOST, BELOW, DIFFERENCE, EQUAL, LESS, SUM, UNEQUAL, Traits, exchange_operands, invert_comparison
from ...syntax.types import BOOL, F32, I32
from ..ir import constructors, ops
from ..ir.ir_types import ScalarT, TileT, dtype_of, is_scalar, scalar
from ..ir.ir_walk import last, operations
from ..ir.ops import is_same_number, number
from .rewriting import before, inline, insert, move_body, replace

Rule = Callable[[ops.Apply], Operation | SSAValue | None]


def run(kernel: ops.Kernel) -> None:
    """Simplify all operations of a kernel."""
    _Simplify().block(kernel.body.block)


class _Simplify:
    """The walk over a kernel that applies the rules."""

    def block(self, block: Block) -> None:
        for op in operations(block):
            if op.parent is not None:
                self.operation(op)

    def operation(self, op: Operation) -> None:
        if isinstance(op, ops.Apply):
            self.apply(op)
            return
        if isinstance(op, ops.If):
            self._simplify_if(op)
            return
        if isinstance(op, ops.For) and _is_empty_loop(op):
            replace(op, op.carried)
            return
        for region in op.regions:
            self.block(region.block)
        if isinstance(op, ops.Branch):
            _drop_equal_results(op)

    def apply(self, op: ops.Apply) -> None:
        """Apply rules to a fixed point, following an operation through its replacements."""
        new: Operation | None = op
        while isinstance(new, ops.Apply):
            simpler = self._apply_first_rule(new)
            if simpler is None:
                return
            if isinstance(simpler, Operation):
                insert(new, simpler)
                replace(new, simpler.results)
                new = simpler
            else:
                replace(new, [simpler])
                return

    def _apply_first_rule(self, op: ops.Apply) -> Operation | SSAValue | None:
        for rule in _rules(op.op):
            simpler = rule(op)
            if simpler is not None:
                return simpler
        return None

    # ---- branches
    def _simplify_if(self, op: ops.If) -> None:
        test = op.condition.owner
        if isinstance(test, ops.Apply) and test.kind.complements:
            op = self._invert(op, test.arguments[0])
            test = op.condition.owner
        if isinstance(test, ops.Apply) and test.kind.compares == UNEQUAL:
            op = self._invert(op, insert(op, constructors.compare(EQUAL, test.arguments, scalar(BOOL))))
        if isinstance(test, ops.Apply) and test.kind.compares == AT_MOST and dtype_of(test.arguments[0]) == I32:
            op = self._invert(op, insert(op, constructors.compare(LESS, test.arguments[::-1], scalar(BOOL))))
        value = ops.constant_value(op.condition)
        if value is not None:
            region = op.then if value else op.orelse
            self.block(region.block)
            replace(op, inline(region.block, op))
            return
        for region in op.regions:
            self.block(region.block)
        _drop_equal_results(op)

    def _invert(self, op: ops.If, condition: SSAValue) -> ops.If:
        """Return the branch on the opposite condition."""
        new = ops.branch(condition, move_body(op.orelse), move_body(op.then))
        before(op, new)
        replace(op, new.results)
        return new


def _is_empty_loop(loop: ops.For) -> bool:
    """Return whether a loop is known to have no turn."""
    start, stop = ops.constant_value(loop.start), ops.constant_value(loop.stop)
    return start is not None and stop is not None and not range(int(start), int(stop), loop.step.data)


def _drop_equal_results(op: ops.Branch) -> None:
    """Replace results of a branch whose sides yield the same value."""
    for result, a, b in zip(op.results, last(op.then).values, last(op.orelse).values, strict=True):
        if a is b or (is_same_number(a, b) and not _is_inside(a, op)):
            result.replace_all_uses_with(a)


def _is_inside(value: SSAValue, op: Operation) -> bool:
    owner: object = value.owner
    while owner is not None:
        if owner is op:
            return True
        owner = owner.parent_op()  # type: ignore[attr-defined]
    return False


def _make_constant_like(value: int | float | bool, op: ops.Apply) -> Operation:
    """Return a constant in place of a scalar or a tile."""
    t = op.result.type
    assert isinstance(t, (ScalarT, TileT))
    number = ops.constant(value, t.element)
    if isinstance(t, ScalarT):
        return number
    return constructors.full(insert(op, number), t)


# ---- rules: the replacement of an operation, or None
def _fold(op: ops.Apply) -> Operation | None:
    """Fold constants, where all evaluators have the same bits."""
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
            return _make_constant_like(meaning.cast(numbers[0], dtype, result), op)
        return None if function is None else _make_constant_like(function(*numbers), op)
    except (DivisionByZero, OverflowError):
        return None


def _unwrap_tiles(op: ops.Apply) -> Operation | None:
    """Use a number in place of a tile of it, where another operand gives the result its shape."""
    t = op.result.type
    if not isinstance(t, TileT):
        return None
    repeats = [ops.kind_of(a).repeats is not None for a in op.arguments]
    if not any(repeats):
        return None
    shapes = [a.type.shape for a, m in zip(op.arguments, repeats, strict=True) if not m and isinstance(a.type, TileT)]
    if not shapes or (max(r for r, _ in shapes), max(c for _, c in shapes)) != t.shape:
        return None
    if op.kind.chooses and repeats[0]:
        return None
    return constructors.like(op, [a.owner.operands[0] if m else a for a, m in zip(op.arguments, repeats, strict=True)])  # type: ignore[union-attr]


def _compute_rank(value: SSAValue) -> int:
    """Return the order of a commutative operand: computed values, floats' comparisons, elements, parameters, constants."""
    owner = value.owner
    if isinstance(owner, ops.Apply):  # most are
        kind = owner.kind
        return 4 if kind.repeats and number(value) is not None else int(bool(kind.compares) and dtype_of(owner.arguments[0]).is_float)
    if isinstance(owner, ops.Constant):
        return 4
    if isinstance(owner, (ops.Parameter, Block)):
        return 3
    return 2 if isinstance(owner, ops.Perform) and owner.kind.indexed else 0


def _order_operands(op: ops.Apply) -> Operation | None:
    kind = op.kind
    if exchange_operands(kind.compares) in BELOW:  # a > b is b < a
        return _make_comparison(op, exchange_operands(kind.compares), op.arguments[::-1])
    if kind.commutative and _compute_rank(op.arguments[0]) > _compute_rank(op.arguments[1]):
        return constructors.like(op, op.arguments[::-1])
    return None


def _make_comparison(op: ops.Apply, signs: tuple[int, ...], operands: Sequence[SSAValue]) -> Operation:
    return constructors.compare(signs, operands, op.result.type, op.exact is not None)


def _simplify_not(op: ops.Apply) -> Operation | SSAValue | None:
    inner = op.arguments[0].owner
    if dtype_of(op.arguments[0]) != BOOL or not isinstance(inner, ops.Apply):
        return None
    kind = inner.kind
    if kind.complements and dtype_of(inner.arguments[0]) == BOOL:
        return inner.arguments[0]
    if kind.compares in (EQUAL, UNEQUAL):
        return _make_comparison(op, invert_comparison(kind.compares), inner.arguments)
    if kind.compares in BELOW and dtype_of(inner.arguments[0]) in (I32, BOOL):  # of integers not (a < b) is b <= a
        return _make_comparison(op, exchange_operands(invert_comparison(kind.compares)), inner.arguments[::-1])
    # the opposites of comparisons are comparisons, and limits of one direction meet
    if kind.decided_by is not None and dtype_of(inner.result) == BOOL:
        sides = [insert(op, constructors.of_kind(op, [x], x.type)) for x in inner.arguments]
        return constructors.dual(inner, sides, op.result.type, op.exact is not None)
    return None


def _simplify_choice(op: ops.Apply) -> Operation | SSAValue | None:
    """Simplify a choice of equal values, or by a known or a negated condition."""
    c, x, y = op.arguments
    same_type = x.type == op.result.type
    if x is y and same_type:
        return x
    value = number(c)
    if value is not None:
        side = x if value else y
        return side if side.type == op.result.type else None
    test = c.owner
    if not isinstance(test, ops.Apply):
        return None
    kind = test.kind
    if kind.complements:
        return constructors.like(op, [test.arguments[0], y, x])
    if kind.compares == UNEQUAL:
        return constructors.like(op, [insert(op, constructors.compare(EQUAL, test.arguments, test.result.type)), y, x])
    if kind.compares == AT_MOST and dtype_of(test.arguments[0]) == I32 and number(x) is not None and number(y) is None:
        return constructors.like(op, [insert(op, constructors.compare(LESS, test.arguments[::-1], test.result.type)), y, x])
    return None


def _make_neutral_rule(value: int, keeps: Sequence[int] = (0, 1)) -> Rule:
    """Return the rule for a neutral element: x op value is x, of integers.

    `keeps`: the indices of operands that may be the value.
    """

    def rule(op: ops.Apply) -> SSAValue | None:
        if dtype_of(op.result) != I32:
            return None
        for i in keeps:
            x, y = op.arguments[1 - i] if i == 0 else op.arguments[0], op.arguments[0] if i == 0 else op.arguments[1]
            if number(y) == value and x.type == op.result.type:
                return x
        return None

    return rule


def _fold_sums(op: ops.Apply) -> Operation | None:
    """Replace (x + c) + d by x + (c + d) of integers, which wrap.

    A constant is subtracted by adding its negative.
    """
    if dtype_of(op.result) != I32:
        return None
    x, y = op.arguments
    d = number(y)
    if d is None or not is_scalar(y):
        return None
    t, exact = op.result.type, op.exact is not None
    if op.kind.linear == DIFFERENCE:
        return constructors.add(x, insert(op, ops.constant(meaning.wrap(-int(d)), I32)), t, exact)
    if ops.kind_of(x).linear != SUM:
        return None
    first, second = x.owner.operands  # type: ignore[union-attr]
    if not is_scalar(second) or (c := number(second)) is None or first.type != t:
        return None
    return constructors.add(first, insert(op, ops.constant(meaning.wrap(int(c) + int(d)), I32)), t, exact)


def _join_scalars(op: ops.Apply) -> Operation | None:
    """Replace s + (t + x) by (s + t) + x of numbers x of rows or columns and integers s and t, which wrap."""
    if dtype_of(op.result) != I32 or is_scalar(op.result):
        return None
    s, tile = op.arguments if is_scalar(op.arguments[0]) else op.arguments[::-1]
    inner = tile.owner
    if not is_scalar(s) or not isinstance(inner, ops.Apply) or inner.kind.linear != SUM:
        return None
    t, x = inner.arguments if is_scalar(inner.arguments[0]) else inner.arguments[::-1]
    if not is_scalar(t) or ops.kind_of(x).index_of is None or inner.parent is not op.parent:
        return None
    exact = op.exact is not None
    return constructors.add(insert(op, constructors.add(s, t, scalar(I32), exact)), x, op.result.type, exact)


def _fold_zero_product(op: ops.Apply) -> Operation | None:
    if dtype_of(op.result) == I32 and 0 in (number(op.arguments[0]), number(op.arguments[1])):
        return _make_constant_like(0, op)
    return None


def _simplify_logic(op: ops.Apply) -> Operation | SSAValue | None:
    """Simplify truth values joined with themselves and with constants."""
    x, y = op.arguments
    if dtype_of(op.result) != BOOL:
        return None
    if x is y:
        return x
    value = number(y)
    if value is None:
        return None
    absorbing = op.kind.decided_by
    if bool(value) is absorbing:
        return _make_constant_like(absorbing, op)
    return x if x.type == op.result.type else None


def _simplify_extremum(op: ops.Apply) -> Operation | SSAValue | None:
    """Simplify the least or greatest of equal operands, and fold that of several constants."""
    x, y = op.arguments
    if x is y:
        return x
    inner, d = x.owner, number(y)
    if d is not None and is_scalar(y) and isinstance(inner, ops.Apply) and inner.op == op.op and is_scalar(inner.arguments[1]):
        c = number(inner.arguments[1])
        function = op.entry.evaluate.scalar(dtype_of(y)) if op.entry.evaluate else None
        if c is not None and function is not None and inner.arguments[0].type == op.result.type:
            return constructors.like(op, [inner.arguments[0], insert(op, ops.constant(function(c, d), dtype_of(y)))])
    return None


def _drop_cast(op: ops.Apply) -> SSAValue | None:
    return op.arguments[0] if op.arguments[0].type == op.result.type else None


def _materialise_constant(op: ops.Apply) -> Operation:
    value = op.kind.constant
    assert value is not None
    return _make_constant_like(value, op)


def _fold_vote(op: ops.Apply) -> Operation | None:
    """Fold a vote on a constant."""
    value = number(op.arguments[0])
    return None if value is None else _make_constant_like(value, op)


def _drop_unit_factor(op: ops.Apply) -> SSAValue | None:
    """Simplify x * 1 and x / 1 of floats."""
    x, y = op.arguments
    return x if dtype_of(op.result).is_float and number(y) == 1 and x.type == op.result.type else None


def _drop_unit_divisor(op: ops.Apply) -> Operation | SSAValue | None:
    if number(op.arguments[1]) != 1:
        return None
    if op.kind.remainder:
        return _make_constant_like(0, op)
    return op.arguments[0] if op.arguments[0].type == op.result.type else None


def _iterate_general_rules(entry: Op) -> Iterator[Rule]:
    """Yield the rules for operations of many kinds."""
    traits = entry.traits
    if entry.evaluate is not None and not entry.reduces:
        if entry.evaluate.rounded:
            yield _fold
        yield _unwrap_tiles
    if traits.commutative or exchange_operands(traits.compares) in BELOW:
        yield _order_operands


def _select_rules(traits: Traits) -> tuple[Rule, ...]:
    if traits.linear in (SUM, DIFFERENCE):
        neutral = _make_neutral_rule(0, [i for i in (0, 1) if traits.linear[1 - i] == 1])
        return (neutral, _fold_sums, _join_scalars) if traits.linear == SUM else (neutral, _fold_sums)
    if traits.multiplies:
        return _make_neutral_rule(1), _fold_zero_product, _drop_unit_factor
    if traits.divides_floats:
        return (_drop_unit_factor,)
    if traits.divides_integers:
        return (_drop_unit_divisor,)
    if traits.decided_by is not None:
        return (_simplify_logic,)
    if traits.constant is not None:
        return (_materialise_constant,)
    rules: tuple[tuple[object, Rule], ...] = (
        (traits.complements, _simplify_not),
        (traits.chooses, _simplify_choice),
        (traits.votes, _fold_vote),
        (traits.extremum, _simplify_extremum),
        (traits.converts, _drop_cast),
    )
    return tuple(rule for holds, rule in rules if holds)


@functools.cache
def _rules(primitive: str) -> tuple[Rule, ...]:
    """Return the rules for a primitive, in the order in which they are tried."""
    entry = ops.entry(primitive)
    return (*_iterate_general_rules(entry), *_select_rules(entry.traits))


__all__ = ["run"]
