"""Brings equal values to one form: constants folded and put last, comparisons turned one way, negations gone, choices that are none removed.

Exact: no result changes, not even the last bit of a float (a NaN may look different). What a program's author may write this way or that gives the same IR.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.ir import BlockArgument, Operation, Region, SSAValue

from ...ops import meaning
from ...ops.meaning import DivisionByZero
from ...syntax.types import BOOL, F32, I32
from ..ir import ops
from ..ir.types import ScalarT, TileT, dtype_of, is_scalar, is_tile, scalar
from .rewriting import before, inline, insert, last, move_body, replace

TURNED = {">": "<", ">=": "<="}  # a > b is b < a
OPPOSITE = {"==": "!=", "!=": "==", "<": "<=", "<=": "<"}  # of integers; not (a < b) is b <= a
SWAPPED = ("<", "<=")
JUNCTIONS = {"&": "|", "|": "&", "and": "or", "or": "and"}


def run(kernel: ops.Kernel) -> None:
    _Simplify().block(kernel.body.block)


class _Simplify:
    def block(self, block: object) -> None:
        for op in list(block.ops):  # type: ignore[attr-defined]
            if op.parent is not None:
                self.operation(op)

    def operation(self, op: Operation) -> None:
        if isinstance(op, ops.If):
            self._if(op)
            return
        for region in op.regions:
            self.block(region.block)
        if isinstance(op, ops.Branch):
            _alike(op)
        if isinstance(op, ops.Apply):
            self.apply(op)

    def apply(self, op: ops.Apply) -> None:
        """Rules until none applies; a rule that replaces an operation hands the new one on."""
        new: Operation | None = op
        while isinstance(new, ops.Apply):
            found = self._rule(new)
            if found is None:
                return
            if isinstance(found, Operation):
                insert(new, found)
                replace(new, found.results)
                new = found
            else:
                replace(new, [found])
                return

    def _rule(self, op: ops.Apply) -> Operation | SSAValue | None:
        for rule in (_folded, _spread, _ordered, *_RULES.get(op.op, ())):
            found = rule(op)
            if found is not None:
                return found
        return None

    # ---- branches
    def _if(self, op: ops.If) -> None:
        test = op.condition.owner
        if isinstance(test, ops.Apply) and test.op in ("not", "~"):
            op = self._turned(op, test.arguments[0])
            test = op.condition.owner
        if isinstance(test, ops.Apply) and test.op == "!=":
            op = self._turned(op, insert(op, ops.apply("==", test.arguments, scalar(BOOL))))
        if isinstance(test, ops.Apply) and test.op == "<=" and dtype_of(test.arguments[0]) == I32:
            op = self._turned(op, insert(op, ops.apply("<", test.arguments[::-1], scalar(BOOL))))
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


def _alike(op: ops.Branch) -> None:
    """What both sides of a branch yield needs no branch."""
    for result, a, b in zip(op.results, last(op.then).values, last(op.orelse).values, strict=True):
        if a is b or (ops.known(a) is not None and ops.known(a) == ops.known(b) and not _inside(a, op)):
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
    return ops.apply("full", [insert(op, number)], t)


def _apply_like(op: ops.Apply, name: str, *args: SSAValue) -> ops.Apply:
    return ops.apply(name, args, op.result.type, op.exact is not None)


def number(value: SSAValue) -> int | float | bool | None:
    """The known number that a scalar, or every element of a tile, is."""
    owner = value.owner
    if isinstance(owner, ops.Apply) and owner.op == "full":
        value = owner.arguments[0]
    return ops.known(value)


# ---- rules: what an operation may be replaced by, or None
def _folded(op: ops.Apply) -> Operation | None:
    """Of known numbers the result, where all evaluators have the same bits."""
    entry = op.entry
    if entry.evaluate is None or not entry.evaluate.rounded or entry.reduces or op.op == "full":
        return None
    numbers = [number(a) for a in op.arguments]
    if not numbers or any(n is None for n in numbers):
        return None
    dtype, result = dtype_of(op.arguments[-1]), dtype_of(op.result)
    if dtype not in (I32, F32, BOOL) or result not in (I32, F32, BOOL):
        return None
    function = entry.evaluate.scalar(dtype)
    try:
        if op.op == "cast":
            return _constant_like(meaning.cast(numbers[0], dtype, result), op)
        return None if function is None else _constant_like(function(*numbers), op)
    except (DivisionByZero, OverflowError):
        return None


def _spread(op: ops.Apply) -> Operation | None:
    """A number in the place of a tile of it, where another operand gives the result its shape."""
    t = op.result.type
    if not isinstance(t, TileT) or op.op == "full" or op.entry.reduces or op.entry.evaluate is None:
        return None
    made = [isinstance(a.owner, ops.Apply) and a.owner.op == "full" for a in op.arguments]
    if not any(made):
        return None
    kept = [a.type.shape for a, m in zip(op.arguments, made, strict=True) if not m and isinstance(a.type, TileT)]
    if not kept or (max(r for r, _ in kept), max(c for _, c in kept)) != t.shape:
        return None
    if op.op == "where" and made[0]:
        return None
    return _apply_like(op, op.op, *(a.owner.arguments[0] if m else a for a, m in zip(op.arguments, made, strict=True)))  # type: ignore[union-attr]


def _rank(value: SSAValue) -> tuple[int, int]:
    """Known numbers last, parameters before them, what is worked out first."""
    if number(value) is not None:
        return 2, 0
    return (1, 0) if isinstance(value.owner, (ops.Parameter,)) or isinstance(value, BlockArgument) else (0, 0)


def _ordered(op: ops.Apply) -> Operation | None:
    if op.op in TURNED:
        return _apply_like(op, TURNED[op.op], *op.arguments[::-1])
    if op.entry.traits.commutative and _rank(op.arguments[0]) > _rank(op.arguments[1]):
        return _apply_like(op, op.op, *op.arguments[::-1])
    return None


def _not(op: ops.Apply) -> Operation | SSAValue | None:
    inner = op.arguments[0].owner
    if dtype_of(op.arguments[0]) != BOOL or not isinstance(inner, ops.Apply):
        return None
    if inner.op in ("not", "~") and dtype_of(inner.arguments[0]) == BOOL:
        return inner.arguments[0]
    if inner.op in ("==", "!="):
        return _apply_like(op, OPPOSITE[inner.op], *inner.arguments)
    if inner.op in SWAPPED and dtype_of(inner.arguments[0]) in (I32, BOOL):
        return _apply_like(op, OPPOSITE[inner.op], *inner.arguments[::-1])
    if (
        inner.op in JUNCTIONS and dtype_of(inner.result) == BOOL
    ):  # the opposites of comparisons are comparisons, and limits of one direction meet
        sides = [insert(op, ops.apply(op.op, [x], x.type)) for x in inner.arguments]
        return _apply_like(op, JUNCTIONS[inner.op], *sides)
    return None


def _choice(op: ops.Apply) -> Operation | SSAValue | None:
    """where and ifexp: of equal values, of a known or a negated condition."""
    c, x, y = op.arguments
    same_type = x.type == op.result.type
    if x is y and same_type:
        return x
    value = number(c)
    if value is not None:
        chosen = x if value else y
        return chosen if chosen.type == op.result.type else None
    test = c.owner
    if isinstance(test, ops.Apply) and test.op in ("not", "~"):
        return _apply_like(op, op.op, test.arguments[0], y, x)
    if isinstance(test, ops.Apply) and test.op == "!=":
        return _apply_like(op, op.op, insert(op, ops.apply("==", test.arguments, test.result.type)), y, x)
    if (
        isinstance(test, ops.Apply)
        and test.op == "<="
        and dtype_of(test.arguments[0]) == I32
        and number(x) is not None
        and number(y) is None
    ):
        return _apply_like(op, op.op, insert(op, ops.apply("<", test.arguments[::-1], test.result.type)), y, x)
    return None


def _neutral(value: int, keeps: Sequence[int] = (0, 1)) -> Callable[[ops.Apply], SSAValue | None]:
    """x op value is x, of integers."""

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
    if op.op == "-":
        return _apply_like(op, "+", x, insert(op, ops.constant(meaning.wrap(-int(d)), I32)))
    inner = x.owner
    if isinstance(inner, ops.Apply) and inner.op == "+" and is_scalar(inner.arguments[1]) and (c := number(inner.arguments[1])) is not None:
        if inner.arguments[0].type != op.result.type:
            return None
        return _apply_like(op, "+", inner.arguments[0], insert(op, ops.constant(meaning.wrap(int(c) + int(d)), I32)))
    return None


def _times_zero(op: ops.Apply) -> Operation | None:
    if dtype_of(op.result) == I32 and 0 in (number(op.arguments[0]), number(op.arguments[1])):
        return _constant_like(0, op)
    return None


def _logic(op: ops.Apply) -> Operation | SSAValue | None:
    """& and | of truth values with themselves and with known ones."""
    x, y = op.arguments
    if dtype_of(op.result) != BOOL:
        return None
    if x is y:
        return x
    value = number(y)
    if value is None:
        return None
    absorbs = op.op in ("|", "or")
    if bool(value) == absorbs:
        return _constant_like(absorbs, op)
    return x if x.type == op.result.type else None


def _extreme(op: ops.Apply) -> Operation | SSAValue | None:
    """min and max: of equal operands; of known ones folded together."""
    x, y = op.arguments
    if x is y:
        return x
    inner, d = x.owner, number(y)
    if d is not None and is_scalar(y) and isinstance(inner, ops.Apply) and inner.op == op.op and is_scalar(inner.arguments[1]):
        c = number(inner.arguments[1])
        function = op.entry.evaluate.scalar(dtype_of(y)) if op.entry.evaluate else None
        if c is not None and function is not None and inner.arguments[0].type == op.result.type:
            return _apply_like(op, op.op, inner.arguments[0], insert(op, ops.constant(function(c, d), dtype_of(y))))
    return None


def _cast(op: ops.Apply) -> SSAValue | None:
    return op.arguments[0] if op.arguments[0].type == op.result.type else None


def _zeros(op: ops.Apply) -> Operation:
    return _constant_like(0, op)


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
    if op.op == "%":
        return _constant_like(0, op)
    return op.arguments[0] if op.arguments[0].type == op.result.type else None


_RULES: dict[str, tuple[Callable[[ops.Apply], Operation | SSAValue | None], ...]] = {
    "not": (_not,), "~": (_not,), "where": (_choice,), "ifexp": (_choice,),
    "+": (_neutral(0), _sum_of_constants), "-": (_neutral(0, (1,)), _sum_of_constants), "*": (_neutral(1), _times_zero, _times_one), "/": (_times_one,), "warp_any": (_vote,),
    "&": (_logic,), "|": (_logic,), "and": (_logic,), "or": (_logic,), "min": (_extreme,), "max": (_extreme,),
    "cast": (_cast,), "zeros": (_zeros,), "//": (_by_one,), "%": (_by_one,), "cdiv": (_by_one,),
}  # fmt: skip

__all__ = ["number", "run"]
_ = (Region, is_tile)
