"""What decides: the floats of a checked kernel from which comparisons and casts to i32 or bool are made. Their arithmetic is done as written.

A fused multiply-add or another order of operations changes a value by a rounding, which nobody minds, and with it the truth of a comparison, which removes
keys from a mask. Owns which expressions are meant: the operands of whatever makes an i32 or a bool of floats, and what these are made of, through names, up
to memory, reductions and products. Sums that a kernel may keep in parts (of row_sum) are behind a reduction too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..ops.base import Op
from ..ops.expressions import operator
from ..syntax.nodes import Assign, Attribute, Call, Expr, For, If, Literal, Name, Stmt, Subscript, Typed
from ..syntax.types import BOOL, I32, DType, Scalar, TileType
from ..syntax.walk import walk
from .checked import Checked


def mark_decisions(checked: Checked) -> None:
    """Writes on each expression that decides that it does: the checker's last step."""
    outer = definitions(checked.declarations)
    for body in (checked.declarations, *(r.body for r in checked.roles)):
        bound: Mapping[str, list[Expr]] = {**outer, **definitions(body)}
        parts = sums_in_parts(checked, bound)
        seen: set[str] = set()
        left = [a for _, floats in _deciders(checked, body) for a in floats]
        while left:
            expr = left.pop()
            if isinstance(expr, Name):
                if expr.id not in seen | parts:
                    seen.add(expr.id)
                    left += bound.get(expr.id, [])
            elif not expr.decides and not isinstance(expr, (Literal, Subscript, Attribute)):
                object.__setattr__(expr, "decides", True)
                left += _floats(checked, expr)


def entry(checked: Checked, expr: Expr) -> tuple[Op, list[Expr]] | None:
    """What the table says of an expression, and its operands; None for names, literals and places."""
    if isinstance(expr, Call):
        bound = checked.find_call(expr)
        return None if bound is None else (bound.op, list(bound.args.values()))
    operation = operator(expr)
    return None if operation is None else (operation[0], list(operation[1]))


def dtype_of(checked: Checked, expr: Expr) -> DType | None:
    """The dtype of a scalar or a register tile."""
    t = expr.type
    return t.dtype if isinstance(t, (Scalar, TileType)) else None


def deciders(checked: Checked) -> Iterator[tuple[Expr, list[Expr]]]:
    """Every expression that makes an i32 or a bool of floats, with those floats."""
    for body in (checked.declarations, *(r.body for r in checked.roles)):
        yield from _deciders(checked, body)


def _deciders(checked: Checked, body: tuple[Stmt, ...]) -> Iterator[tuple[Expr, list[Expr]]]:
    for expr in expressions(body):
        if isinstance(expr, (Name, Literal)):
            continue
        floats = _floats(checked, expr)
        if floats and dtype_of(checked, expr) in (I32, BOOL):
            yield expr, floats


def expressions(body: tuple[Stmt, ...]) -> Iterator[Expr]:
    """Every expression of a block, in nested blocks and inside others too."""
    for stmt in body:
        yield from (n for n in walk(stmt) if isinstance(n, Typed))  # type: ignore[misc]


def _floats(checked: Checked, expr: Expr) -> list[Expr]:
    """The float operands of an operation on values; none of reductions, products, and reads of memory."""
    operation = entry(checked, expr)
    if operation is None or operation[0].reduces or operation[0].effects.accesses:
        return []
    return [a for a in operation[1] if (t := dtype_of(checked, a)) is not None and t.is_float]


def definitions(body: tuple[Stmt, ...]) -> dict[str, list[Expr]]:
    """What the assignments of a block bind each name to, in nested blocks too."""
    bindings: dict[str, list[Expr]] = {}
    for stmt in body:
        if isinstance(stmt, Assign):
            bindings.setdefault(stmt.targets[0], []).append(stmt.value)
        elif isinstance(stmt, (If, For)):
            inner = definitions((*stmt.body, *stmt.orelse) if isinstance(stmt, If) else stmt.body)
            for name, values in inner.items():
                bindings.setdefault(name, []).extend(values)
    return bindings


def sums_in_parts(checked: Checked, bound: Mapping[str, list[Expr]]) -> set[str]:
    """Names of [R, 1] values that a sum of rows reaches: their last bits depend on its order anyway."""
    rows = {n for n, values in bound.items() if all(isinstance(t := v.type, TileType) and t.cols == 1 for v in values)}
    names: set[str] = set()

    def reached(expr: Expr) -> bool:
        if isinstance(expr, Name):
            return expr.id in names
        what = entry(checked, expr)
        if what is None or what[0].effects.accesses:
            return False
        if what[0].reduces:
            return what[0].sums
        return any(map(reached, _floats(checked, expr)))

    while True:
        more = {n for n in rows - names if any(map(reached, bound[n]))}
        if not more:
            return names
        names |= more


__all__ = ["deciders", "definitions", "dtype_of", "entry", "expressions", "mark_decisions"]
