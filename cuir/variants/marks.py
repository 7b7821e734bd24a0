"""Marks in traced expressions that only derivatives read. They are removed before an expression becomes part of a program.

A mark stands around the value that a program computes, and says how that value is differentiated where the chain rule of its parts would give another result than PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from ..ops.expressions import traits
from ..syntax.nodes import Call, Expr, Name
from ..syntax.rewrite import with_children
from ..syntax.walk import Itself

_DETACHED, _DERIVED, _EVENLY = Name("detached"), Name("derived"), Name("evenly")
_MARKS = (_DETACHED, _DERIVED, _EVENLY)


def detached(value: Expr) -> Call:
    """Mark a value as constant."""
    return Call(_DETACHED, (value,))


def derived(value: Expr, partials: Iterable[tuple[Expr, Expr]]) -> Call:
    """Mark a value with its partial derivatives: operands, each with the derivative by it. Marks within the value and the derivatives say nothing more."""
    done: dict[Itself, Expr] = {}
    pairs = [(operand, without_marks(partial, done)) for operand, partial in partials]
    return Call(_DERIVED, (without_marks(value, done), *(e for pair in pairs for e in pair)))


def evenly(value: Expr, operands: Iterable[Expr]) -> Call:
    """Mark an extremum of many operands whose derivative is shared evenly among those that are equal to it."""
    return Call(_EVENLY, (without_marks(value), *operands))


def is_detached(e: Expr) -> bool:
    return isinstance(e, Call) and e.func == _DETACHED


def partials_of(e: Expr) -> list[tuple[Expr, Expr]] | None:
    """Operands with the derivatives by them; None for an expression without such a mark."""
    if not isinstance(e, Call) or e.func != _DERIVED:
        return None
    return list(zip(e.args[1::2], e.args[2::2], strict=True))


def extremes_of(e: Expr) -> tuple[Expr, ...] | None:
    """Operands of an extremum that shares its derivative evenly; None for other expressions."""
    return e.args[1:] if isinstance(e, Call) and e.func == _EVENLY else None


def extremum_of(e: Expr) -> Expr:
    """The outermost extremum of two within such a mark, without conversions to half precision and back around it; the operand itself if there is but one."""
    value = without_marks(e)
    while traits(value).converts:
        value = cast(Call, value).args[0]
    return value


def marked_value(e: Expr) -> Expr | None:
    """The value within a mark; None for an expression that is none."""
    return e.args[0] if isinstance(e, Call) and e.func in _MARKS else None


def without_marks(e: Expr, done: dict[Itself, Expr] | None = None) -> Expr:
    """Return the expression as programs have it; itself if it has no marks. done: what became of subtrees, for several trees that share some."""
    known: dict[Itself, Expr] = {} if done is None else done

    def plain(e: Expr) -> Expr:
        key = Itself(e)
        if key not in known:
            value = marked_value(e)
            known[key] = with_children(e, plain) if value is None else plain(value)
        return known[key]

    return plain(e)


__all__ = ["derived", "detached", "evenly", "extremes_of", "extremum_of", "is_detached", "marked_value", "partials_of", "without_marks"]
