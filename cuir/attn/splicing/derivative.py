"""The chain rule: derivatives of a traced score as expressions of CuIR.

They are taken with respect to the product of query and key, or to an element of a captured tensor.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import cast

from ...ops.build_calls import where
from ...ops.derivatives import differentiate_op
from ...ops.expressions import operation, traits
from ...syntax.nodes import Binary, Call, Expr, IfExp, Literal, Name, Subscript, Unary
from ...syntax.types import DTYPES
from ...syntax.walk import IdentityKey, NamesRead, names_read
from ...text.diagnostics import CuirError
from ..tracing.derivative_marks import extremes_of, extremum_of, is_detached, partials_of, remove_marks
from ..tracing.factoring import VARYING
from ..tracing.mod_evaluator import CONSTANTS, evaluate

_S, _SCALE = Name("S"), Name("scale")
_UNIT, _ZERO, _HALF = Literal(1.0), Literal(0.0), Literal(0.5)
_CONSTANT_NAMES = {*CONSTANTS, "inf"}


def dscore(score: Expr, factor: Expr) -> Expr:
    """Return the derivative of the natural logit, score * factor * ln 2, with respect to scale * S.

    Raises CuirError X109 for an operation whose derivative is unknown.
    """
    return remove_marks(_of_logit(_Chain(_S).of(score), factor, [_SCALE]))


def of_read(score: Expr, factor: Expr, read: Subscript, names: NamesRead | None = None) -> Expr:
    """Differentiate the natural logit with respect to an element that is read.

    The factor reads no tensor. `names` caches names read by subtrees, for derivatives by many reads. Raises CuirError
    X109.
    """
    return remove_marks(_of_logit(_Chain(read, names).of(score), factor, []))


def differentiate(e: Expr, variable: Name | Subscript) -> Expr:
    """Return the derivative of an f32 expression by a name or a read, the literal 0.0 if there is none.

    Raises CuirError X109.
    """
    return remove_marks(_Chain(variable).of(e) or _ZERO)


def _of_logit(change: Expr | None, factor: Expr, over: list[Expr]) -> Expr:
    """Return the change of the score times factor * ln 2, divided by `over`."""
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
    """Return the factors of a product, and append its divisors to `over`.

    A literal 1 is left out.
    """
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
    """Multiply the factors `times`, divided by `over`; factors that a block shares come last.

    These form one product, which is computed once.
    """
    times = sorted(times, key=lambda e: not names_read(e) & VARYING)
    result = _multiply(times)
    return result if not over else Binary("/", result, _multiply(over))


def _multiply(factors: list[Expr]) -> Expr:
    varying = [f for f in factors if names_read(f) & VARYING]
    uniform = [f for f in factors if f not in varying]
    parts = [_fold_product(part) for part in (varying, uniform) if part]
    return _fold_product(parts) if parts else _UNIT


def _fold_product(factors: list[Expr]) -> Expr:
    result = factors[0]
    for f in factors[1:]:
        result = Binary("*", result, f)
    return result


class _Chain:
    """Forward differentiation: the change of each expression with a variable, S or a read of a tensor.

    None where the change is 0.
    """

    def __init__(self, variable: Name | Subscript, names: NamesRead | None = None) -> None:
        self.variable, self.names = variable, names or NamesRead()
        self.name = variable.id if isinstance(variable, Name) else cast(Name, variable.value).id
        self.derivatives: dict[IdentityKey, Expr | None] = {}  # tracing shares subexpressions

    def of(self, e: Expr) -> Expr | None:
        key = IdentityKey(e)
        if key not in self.derivatives:
            self.derivatives[key] = self.fresh(e)
        return self.derivatives[key]

    def fresh(self, e: Expr) -> Expr | None:
        if self.name not in self.names(e):
            return None
        if e == self.variable:
            return _UNIT
        if isinstance(e, Subscript) or is_detached(e):
            return None  # another element, or one whose index the variable decides
        if (pairs := partials_of(e)) is not None:
            return self.total((self.of(x), partial) for x, partial in pairs)
        if (operands := extremes_of(e)) is not None:
            return self.shared(operands, extremum_of(e))
        op_args = operation(e)
        if op_args is None:
            raise _make_unknown_error(e)
        op, args = op_args
        if op.traits.chooses:
            cond, x, y = args
            then, otherwise = self.of(x), self.of(y)
            if then is None and otherwise is None:
                return None
            return then if then == otherwise else _choose(cond, then or _ZERO, otherwise or _ZERO)
        if op.traits.converts:
            return self.of(args[0]) if isinstance(args[1], Name) and DTYPES[args[1].id].is_float else None
        if op.traits.compares:
            return None
        if op.traits.extremum:
            return self.extremum(e, op.traits.extremum, args)
        changes = [self.of(a) for a in args]
        if not any(changes):
            return None
        by_operand = differentiate_op(op, args, e, _choose)
        if by_operand is None:
            raise _make_unknown_error(e)
        return self.total(zip(changes, by_operand, strict=True))

    def total(self, terms: Iterable[tuple[Expr | None, Expr | None]]) -> Expr | None:
        """Return the sum of changes times derivatives."""
        total: Expr | None = None
        for change, partial in terms:
            if change is not None and partial is not None and (product := _scale(change, partial)) != _ZERO:
                total = _sum(total, product)
        return total

    def extremum(self, e: Expr, kind: str, args: tuple[Expr, ...]) -> Expr | None:
        """Return the change of an extremum, as of torch.maximum.

        Equal operands have half each, and beside NaN each has all of it.
        """
        at, change = args[0], self.of(args[0])
        for operand in args[1:]:
            mine = self.of(operand)
            if change is not None and mine is not None and change != mine:
                total = Binary("+", change, mine)
                shared = _choose(Binary("==", at, operand), _scale(total, _HALF), total)
                change = _choose(_before(kind, at, operand), change, _choose(_before(kind, operand, at), mine, shared))
            elif change is None and mine is not None:
                change = _of_one(kind, operand, at, mine)
            elif mine is None and change is not None:
                change = _of_one(kind, at, operand, change)
            assert isinstance(e, Call)
            at = Call(e.func, (at, operand))
        return change

    def shared(self, operands: tuple[Expr, ...], value: Expr) -> Expr | None:
        """Return the mean change of the operands that are equal to their extremum.

        `value` is the extremum; its call joins the operands two by two, as captured_rows.py folds them.
        """
        if len(operands) < 2:
            return self.of(operands[0])
        kind, call = traits(value).extremum, cast(Call, value)
        assert kind is not None
        items = [(x, self.of(x), cast(Expr, _UNIT)) for x in operands]
        if all(change == items[0][1] for _, change, _ in items):
            return items[0][1]
        while len(items) > 1:
            items = [_join(kind, call, *items[i : i + 2]) if i + 1 < len(items) else items[i] for i in range(0, len(items), 2)]
        ((_, total, count),) = items
        return None if total is None else Binary("/", total, count)


def _choose(cond: Expr, x: Expr, y: Expr) -> Expr:
    """Return x where cond, else y: of tiles, of scalars, or one of them if the condition is constant."""
    if names_read(cond) <= _CONSTANT_NAMES:
        return x if evaluate(cond, {}) else y
    if names_read(cond) & VARYING:
        return where(cond, x, y)
    if not names_read(x) & VARYING and not names_read(y) & VARYING:
        return IfExp(cond, x, y)
    return where(Binary("&", cond, Binary("==", Name("k"), Name("k"))), x, y)  # of a tile, as a condition of where is


def _before(kind: str, x: Expr, y: Expr, or_equal: bool = False) -> Expr:
    """Return the comparison that holds where x is the extremum of x and y."""
    return Binary((">" if kind == "max" else "<") + "=" * or_equal, x, y)


def _of_one(kind: str, at: Expr, constant: Expr, change: Expr) -> Expr:
    """Return the change of a min or max whose second operand is constant."""
    return _choose(_before(kind, constant, at), _ZERO, _choose(Binary("==", at, constant), _scale(change, _HALF), change))


# a value, the sum of changes of the operands that are equal to it, and their number
_Item = tuple[Expr, Expr | None, Expr]


def _join(kind: str, call: Call, x: _Item, y: _Item) -> _Item:
    """Join two extrema."""
    keeps = [_before(kind, a, b, or_equal=True) for a, b in ((x[0], y[0]), (y[0], x[0]))]
    changes = [None if change is None else _choose(keep, change, _ZERO) for keep, (_, change, _) in zip(keeps, (x, y), strict=True)]
    first, second = changes
    total = second if first is None else first if second is None else Binary("+", first, second)
    counts = [_choose(keep, count, _ZERO) for keep, (_, _, count) in zip(keeps, (x, y), strict=True)]
    return replace(call, args=(x[0], y[0])), total, Binary("+", *counts)


def _scale(change: Expr, partial: Expr) -> Expr:
    """Return the product; where a factor chooses 0 so does the product, even beside an infinity."""
    if _ZERO in (change, partial):
        return _ZERO
    of_change, of_partial = _choice(change), _choice(partial)
    if of_partial is not None and _ZERO in of_partial[1:]:
        cond, then, otherwise = of_partial
        return _choose(cond, _scale(change, then), _scale(change, otherwise))
    if of_change is not None and _ZERO in of_change[1:]:
        cond, then, otherwise = of_change
        return _choose(cond, _scale(then, partial), _scale(otherwise, partial))
    return _times(change, partial)


def _choice(e: Expr) -> tuple[Expr, ...] | None:
    """Return condition and alternatives of a choice; None for other expressions."""
    op_args = operation(e)
    return op_args[1] if op_args is not None and op_args[0].traits.chooses else None


def _times(a: Expr, b: Expr) -> Expr:
    if a == _UNIT:
        return b
    if b == _UNIT:
        return a
    if Literal(-1.0) in (a, b):
        return Unary("-", b if a == Literal(-1.0) else a)
    return Binary("*", a, b)


def _sum(a: Expr | None, b: Expr) -> Expr:
    if a is None:
        return b
    first, second = _choice(a), _choice(b)
    # either the one or the other
    if first is not None and second is not None and first[0] == second[0] and first[2] == second[1] == _ZERO:
        return _choose(first[0], first[1], second[2])
    return Binary("+", a, b)


def _make_unknown_error(e: Expr) -> CuirError:
    from ...syntax.printer import show

    return CuirError.of("X109", f"the derivative of `{show(e)}` is not known, so this score has no gradients", e.span)


__all__ = ["differentiate", "dscore", "of_read"]
