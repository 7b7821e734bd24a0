"""Constant folding: arithmetic on literals by the table of primitives, and checks of their ranges."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping

from ..ops.base import Op
from ..ops.expressions import get_called_op, operator, traits
from ..ops.meaning import convert, shortest, unify_dtypes, wrap
from ..syntax.nodes import Binary, Call, Expr, IfExp, Literal, Name, Unary
from ..syntax.types import I32, Scalar
from ..syntax.walk import with_children
from ..text.diagnostics import Sink

Number = int | float | bool


def literal(expr: Expr) -> Number | None:
    return expr.value if isinstance(expr, Literal) else None


def fold(expr: Expr) -> Expr:
    """Fold an expression of literals to a literal.

    Returns the expression itself if it is none, or if the result is no finite number. Raises ZeroDivisionError.
    """
    if isinstance(expr, (Unary, Binary)):
        return _fold_operator(expr)
    if isinstance(expr, IfExp):
        cond = literal(expr.cond)
        if isinstance(cond, bool):
            return expr.then if cond else expr.other
    elif isinstance(expr, Call) and not expr.keywords and (op := get_called_op(expr)) is not None:
        return _fold_call(expr, op, expr.args)
    return expr


def _fold_call(expr: Expr, op: Op, args: tuple[Expr, ...]) -> Expr:
    """Fold an operation on literals if its result has the same bits on every machine.

    Operands that the checker would report stay.
    """
    if op.evaluate is None or not op.evaluate.rounded or op.where != "any":
        return expr
    values: list[Number] = []
    for a in args:
        if not isinstance(a, Literal):
            return expr
        values.append(a.value)
    variadic = op.params[0].variadic
    if len(values) < 2 if variadic else len(values) != len(op.params):
        return expr
    kinds = {type(v) for v in values}
    dtype = unify_dtypes(values)
    function = op.evaluate.scalar(dtype)
    negative = op.traits.linear == (-1,)
    least = negative and values[0] == 2**31  # the spelling of the least integer
    beyond = dtype == I32 and any(not -(2**31) <= v < 2**31 for v in values) and not least
    if function is None or beyond or (bool in kinds and len(kinds) > 1):
        return expr
    if negative:
        # exact: keeps the digits as written
        return Literal(wrap(-values[0]) if dtype == I32 else -values[0], span=expr.span)
    value, *rest = (convert(v, dtype) for v in values)
    value = functools.reduce(function, rest, value) if rest else function(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            return expr
        value = shortest(value)
    return Literal(value, span=expr.span)


def specialise(expr: Expr, values: Mapping[str, Expr]) -> Expr:
    """Replace names by values and fold constants: a literal if the whole expression is known then.

    Raises ZeroDivisionError.
    """

    def inner(e: Expr) -> Expr:
        return specialise(e, values)

    if isinstance(expr, Name):
        return values.get(expr.id, expr)
    if isinstance(expr, Binary) and traits(expr).lazy:
        first = inner(expr.left)
        if isinstance(first, Literal) and first.value is traits(expr).decided_by:
            return first
    if isinstance(expr, IfExp):
        cond = inner(expr.cond)
        if isinstance(cond, Literal) and isinstance(cond.value, bool):
            return inner(expr.then if cond.value else expr.other)
        return with_children(expr, lambda child: cond if child is expr.cond else child)
    if isinstance(expr, Call):
        return fold(with_children(expr, lambda child: child if child is expr.func else inner(child)))
    return fold(with_children(expr, inner)) if isinstance(expr, (Unary, Binary)) else expr


def _fold_operator(expr: Unary | Binary) -> Expr:
    operation = operator(expr)
    assert operation is not None
    op, args = operation
    a = literal(args[0])
    if op.traits.lazy and isinstance(a, bool):  # the right side is not evaluated when the left decides
        return Literal(a, span=expr.span) if a is op.traits.decided_by else args[1]
    if op.traits.compares and op.traits.commutative:
        first, second = args
        if isinstance(first, Name) and isinstance(second, Name) and {first.id, second.id} <= _list_dtypes():
            return Literal((first.id == second.id) == (0 in op.traits.compares), span=expr.span)  # T == f16
    return _fold_call(expr, op, args)


def _list_dtypes() -> set[str]:
    from ..syntax.types import DTYPES

    return set(DTYPES)


def check_literals(literals: Iterable[Literal], sink: Sink) -> None:
    """Report each number (T175) that its dtype does not hold."""
    for e in literals:
        t = e.type
        if not isinstance(t, Scalar) or isinstance(e.value, bool):
            continue
        if t.dtype == I32 and not -(2**31) <= e.value < 2**31:
            hint = "numbers from -2147483648 to 2147483647; an f32 is written with a point: 4e9"
            sink.error("T175", f"an i32 has 32 bits, found {shorten(e.value)}", e.span, hint)
        elif t.dtype.is_float and not abs(e.value) < t.dtype.overflows:
            message = f"{shorten(e.value)} is beyond the largest {t.dtype}, {t.dtype.largest}"
            sink.error("T175", message, e.span, "write `inf` for infinity")


def shorten(value: float) -> str:
    """Format a number as text of bounded length."""
    text = str(value)
    return text if len(text) <= 40 else f"{text[:20]}... ({len(text)} digits)"
