"""Arithmetic on literals. Owns the meaning of constant expressions: Python's, but for `cdiv`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .nodes import Binary, Call, Expr, IfExp, Literal, Name, Unary

Number = int | float | bool

_BINARY = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": lambda a, b: a / b, "//": lambda a, b: a // b, "%": lambda a, b: a % b,
    "&": lambda a, b: a & b, "|": lambda a, b: a | b, "^": lambda a, b: a ^ b, "and": lambda a, b: a and b, "or": lambda a, b: a or b,
    "==": lambda a, b: a == b, "!=": lambda a, b: a != b, "<": lambda a, b: a < b, "<=": lambda a, b: a <= b, ">": lambda a, b: a > b, ">=": lambda a, b: a >= b,
}  # fmt: skip
_LARGEST = 2**63  # beyond, integers are left as they are written: no dtype holds them, and squares of squares would fill the memory
_INT_ONLY = {"//", "%", "&", "|", "^"}
_BOOL_ONLY = {"and", "or"}
_CALLS = {"min": min, "max": max, "abs": abs, "cdiv": lambda a, b: -(-a // b)}


def literal(expr: Expr) -> Number | None:
    return expr.value if isinstance(expr, Literal) else None


def fold(expr: Expr) -> Expr:
    """The literal that an expression of literals is; else the expression. Raises ZeroDivisionError."""
    if isinstance(expr, Unary):
        value = literal(expr.operand)
        if value is not None:
            if expr.op == "not" and isinstance(value, bool):
                return Literal(not value, span=expr.span)
            if expr.op == "-" and not isinstance(value, bool):
                return Literal(-value, span=expr.span)
            if expr.op == "~" and isinstance(value, int):
                return Literal((not value) if isinstance(value, bool) else ~value, span=expr.span)
    elif isinstance(expr, Binary):
        return _binary(expr)
    elif isinstance(expr, IfExp):
        cond = literal(expr.cond)
        if isinstance(cond, bool):
            return expr.then if cond else expr.other
    elif isinstance(expr, Call) and isinstance(expr.func, Name) and expr.func.id in _CALLS and expr.args and not expr.keywords:
        values = [literal(a) for a in expr.args]
        wanted = 1 if expr.func.id == "abs" else 2
        if all(v is not None and not isinstance(v, bool) for v in values) and (
            len(values) == wanted or (wanted == 2 and expr.func.id != "cdiv" and len(values) > 2)
        ):
            return Literal(_CALLS[expr.func.id](*values), span=expr.span)  # type: ignore[operator]
    return expr


def specialised(expr: Expr, values: Mapping[str, Expr]) -> Expr:
    """The expression with names replaced and folded: a literal if that makes all of it known. Raises ZeroDivisionError."""

    def inner(e: Expr) -> Expr:
        return specialised(e, values)

    if isinstance(expr, Name):
        return values.get(expr.id, expr)
    if isinstance(expr, Unary):
        return fold(replace(expr, operand=inner(expr.operand)))
    if isinstance(expr, Binary):
        left = inner(expr.left)
        decided = expr.op in _BOOL_ONLY and isinstance(left, Literal) and left.value is (expr.op == "or")
        return left if decided else fold(replace(expr, left=left, right=inner(expr.right)))
    if isinstance(expr, IfExp):
        cond = inner(expr.cond)
        if isinstance(cond, Literal) and isinstance(cond.value, bool):
            return inner(expr.then if cond.value else expr.other)
        return replace(expr, cond=cond)
    return fold(replace(expr, args=tuple(map(inner, expr.args)))) if isinstance(expr, Call) else expr


def _binary(expr: Binary) -> Expr:
    a, b = literal(expr.left), literal(expr.right)
    if expr.op in _BOOL_ONLY and isinstance(a, bool):  # the right side is not evaluated when the left decides
        decided = a if expr.op == "or" else not a
        return Literal(a, span=expr.span) if decided else expr.right
    if a is None or b is None:
        if (
            expr.op in ("==", "!=")
            and isinstance(expr.left, Name)
            and isinstance(expr.right, Name)
            and {expr.left.id, expr.right.id} <= _dtypes()
        ):
            return Literal((expr.left.id == expr.right.id) == (expr.op == "=="), span=expr.span)  # T == f16
        return expr
    both_bool, any_bool = isinstance(a, bool) and isinstance(b, bool), isinstance(a, bool) or isinstance(b, bool)
    if expr.op in _BOOL_ONLY:
        return expr
    if any_bool and not (both_bool and expr.op in ("&", "|", "^", "==", "!=")):
        return expr  # left for the checker to report
    if expr.op in _INT_ONLY and (isinstance(a, float) or isinstance(b, float)):
        return expr
    if expr.op == "/" and isinstance(a, int) and isinstance(b, int):
        return expr
    found = _BINARY[expr.op](a, b)
    return expr if isinstance(found, int) and abs(found) >= _LARGEST else Literal(found, span=expr.span)


def _dtypes() -> set[str]:
    from .types import DTYPES

    return set(DTYPES)
