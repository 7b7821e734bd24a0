"""The derivative of a traced score with respect to the product of query and key, or to an element of a captured tensor, as an expression of CuIR. Owns the chain rule."""

from __future__ import annotations

import math
from typing import cast

from ..ops.build import where
from ..ops.derivatives import partials
from ..ops.expressions import operation, traits
from ..syntax.nodes import Binary, Call, Expr, IfExp, Literal, Name, Subscript, Unary
from ..syntax.types import F32
from ..syntax.walk import Itself, names_read
from ..text.diagnostics import CuirError
from .detached import attached, is_detached
from .evaluate import CONSTANTS, evaluate
from .factoring import VARYING

_S, _SCALE = Name("S"), Name("scale")
_ONE, _ZERO = Literal(1.0), Literal(0.0)
_KNOWN = {*CONSTANTS, "inf"}


def dscore(score: Expr, factor: Expr) -> Expr:
    """The derivative of the natural logit, score * factor * ln 2, with respect to scale * S. Raises CuirError X109 for an operation whose derivative is not known."""
    return attached(_of_logit(_Chain(_S).of(score), factor, [_SCALE]))


def of_read(score: Expr, factor: Expr, read: Subscript) -> Expr:
    """The derivative of the natural logit with respect to the element of a captured tensor that a read gives; the factor reads no tensor. Raises CuirError X109."""
    return attached(_of_logit(_Chain(read).of(score), factor, []))


def _of_logit(change: Expr | None, factor: Expr, over: list[Expr]) -> Expr:
    """The change of the score times factor * ln 2, over `over`."""
    if change is None:
        return _ZERO
    times = [f for e in (change, factor) for f in _factors(e, over)]
    log2e = next((f for f in times if _is_log2e(f)), None)
    if log2e is not None:
        times.remove(log2e)
    else:
        times.append(Name("LN2"))
    for f in list(over):
        if f in times:
            times.remove(f)
            over.remove(f)
    return _product(times, over)


def _is_log2e(e: Expr) -> bool:
    value = CONSTANTS.get(e.id) if isinstance(e, Name) else e.value if isinstance(e, Literal) else None
    return isinstance(value, float) and math.isclose(value, CONSTANTS["LOG2E"], rel_tol=1e-12)


def _factors(e: Expr, over: list[Expr]) -> list[Expr]:
    """The factors of a product; those that divide it go to `over`. A literal 1 is none."""
    if isinstance(e, Literal) and e.value == 1.0:
        return []
    if isinstance(e, Binary) and traits(e).factors:
        left = _factors(e.left, over)
        if "y" in traits(e).factors:
            return left + _factors(e.right, over)
        into: list[Expr] = []
        over += _factors(e.right, into)
        return left + into
    return [e]


def _product(times: list[Expr], over: list[Expr]) -> Expr:
    """What is the same in a whole block comes last, and is worked out once."""
    times = sorted(times, key=lambda e: not names_read(e) & VARYING)
    result = _multiplied(times)
    return result if not over else Binary("/", result, _multiplied(over))


def _multiplied(factors: list[Expr]) -> Expr:
    varying = [f for f in factors if names_read(f) & VARYING]
    uniform = [f for f in factors if f not in varying]
    parts = [_left(part) for part in (varying, uniform) if part]
    return _left(parts) if parts else _ONE


def _left(factors: list[Expr]) -> Expr:
    result = factors[0]
    for f in factors[1:]:
        result = Binary("*", result, f)
    return result


class _Chain:
    """Forward: the change of each expression with a variable, S or what a read of a tensor gives; None where it is 0."""

    def __init__(self, variable: Name | Subscript) -> None:
        self.variable = variable
        self.name = variable.id if isinstance(variable, Name) else cast(Name, variable.value).id
        self.known: dict[Itself, Expr | None] = {}  # tracing shares subexpressions

    def of(self, e: Expr) -> Expr | None:
        key = Itself(e)
        if key not in self.known:
            self.known[key] = self.fresh(e)
        return self.known[key]

    def fresh(self, e: Expr) -> Expr | None:
        if self.name not in names_read(e):
            return None
        if e == self.variable:
            return _ONE
        if isinstance(e, Subscript) or is_detached(e):
            return None  # another element, or one whose index the variable decides
        op_args = operation(e)
        if op_args is None:
            raise _unknown(e)
        op, args = op_args
        if op.traits.chooses:
            cond, x, y = args
            then, other = self.of(x), self.of(y)
            if then is None and other is None:
                return None
            return then if then == other else _chosen(cond, then or _ZERO, other or _ZERO)
        if op.traits.converts:
            return self.of(args[0]) if isinstance(args[1], Name) and args[1].id == F32.name else None
        if op.traits.compares:
            return None
        if op.traits.extremum:
            return self.extremum(e, op.traits.extremum, args)
        changes = [self.of(a) for a in args]
        if not any(changes):
            return None
        by_operand = partials(op, args, e, _chosen)
        if by_operand is None:
            raise _unknown(e)
        total: Expr | None = None
        for partial, change in zip(by_operand, changes, strict=True):
            if change is not None and partial is not None:
                total = _sum(total, _times(change, partial))
        return total

    def extremum(self, e: Expr, which: str, args: tuple[Expr, ...]) -> Expr | None:
        """Of the operand that it is; the last of equal ones."""
        at, change = args[0], self.of(args[0])
        for other in args[1:]:
            mine = self.of(other)
            if change is not None or mine is not None:
                first = Binary(">" if which == "max" else "<", at, other)
                change = change if change == mine else _chosen(first, change or _ZERO, mine or _ZERO)
            assert isinstance(e, Call)
            at = Call(e.func, (at, other))
        return change


def _chosen(cond: Expr, x: Expr, y: Expr) -> Expr:
    """x where cond, else y: of tiles, of scalars, or what it is if the condition is known."""
    if names_read(cond) <= _KNOWN:
        return x if evaluate(cond, {}) else y
    if names_read(cond) & VARYING:
        return where(cond, x, y)
    if not names_read(x) & VARYING and not names_read(y) & VARYING:
        return IfExp(cond, x, y)
    return where(Binary("&", cond, Binary("==", Name("k"), Name("k"))), x, y)  # of a tile, as a condition of where is


def _times(a: Expr, b: Expr) -> Expr:
    if a == _ONE:
        return b
    if b == _ONE:
        return a
    if Literal(-1.0) in (a, b):
        return Unary("-", b if a == Literal(-1.0) else a)
    return Binary("*", a, b)


def _sum(a: Expr | None, b: Expr) -> Expr:
    return b if a is None else Binary("+", a, b)


def _unknown(e: Expr) -> CuirError:
    from ..syntax.printer import show

    return CuirError.of("X109", f"the derivative of `{show(e)}` is not known, so this score has no gradients", e.span)


__all__ = ["dscore", "of_read"]
