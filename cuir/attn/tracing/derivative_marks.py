"""Marks in traced expressions that only derivatives read.

A mark stands around the value that a program computes.
It says how the value is differentiated where the chain rule of its parts gives another result than PyTorch.
Marks are removed before an expression becomes part of a program.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from ...ops.expressions import traits
from ...syntax.nodes import Call, Expr, Name
from ...syntax.walk import IdentityKey, with_children

_DETACHED, _PARTIALS, _SHARED = Name("detached"), Name("partials"), Name("shared_evenly")
_MARKS = (_DETACHED, _PARTIALS, _SHARED)


def mark_detached(value: Expr) -> Call:
    """Mark a value as constant."""
    return Call(_DETACHED, (value,))


def mark_partials(value: Expr, partials: Iterable[tuple[Expr, Expr]]) -> Call:
    """Mark a value with its partial derivatives: operands, each with the derivative by it.

    Marks within the value and within the derivatives are removed, since nothing reads them.
    """
    rewritten: dict[IdentityKey, Expr] = {}
    pairs = [(operand, remove_marks(partial, rewritten)) for operand, partial in partials]
    return Call(_PARTIALS, (remove_marks(value, rewritten), *(e for pair in pairs for e in pair)))


def mark_shared(value: Expr, operands: Iterable[Expr]) -> Call:
    """Mark an extremum of many operands: those that are equal to it share its derivative evenly."""
    return Call(_SHARED, (remove_marks(value), *operands))


def is_detached(e: Expr) -> bool:
    return isinstance(e, Call) and e.func == _DETACHED


def partials_of(e: Expr) -> list[tuple[Expr, Expr]] | None:
    """Return the operands in a derivative mark, each with its derivative; None without a mark."""
    if not isinstance(e, Call) or e.func != _PARTIALS:
        return None
    return list(zip(e.args[1::2], e.args[2::2], strict=True))


def extremes_of(e: Expr) -> tuple[Expr, ...] | None:
    """Return operands of an extremum that shares its derivative evenly; None for other expressions."""
    return e.args[1:] if isinstance(e, Call) and e.func == _SHARED else None


def extremum_of(e: Expr) -> Expr:
    """Return the min or max inside a derivative mark, or its operand if there is only one.

    Conversions to half precision and back around it are left out: its operands have them, too.
    """
    value = remove_marks(e)
    while traits(value).converts:
        value = cast(Call, value).args[0]
    return value


def read_marked_value(e: Expr) -> Expr | None:
    """Return the value within a mark; None for other expressions."""
    return e.args[0] if isinstance(e, Call) and e.func in _MARKS else None


def remove_marks(e: Expr, cache: dict[IdentityKey, Expr] | None = None) -> Expr:
    """Return the expression as programs have it; itself if it has no marks.

    done: results for subtrees, where several trees share some.
    """
    results: dict[IdentityKey, Expr] = {} if cache is None else cache

    def plain(e: Expr) -> Expr:
        key = IdentityKey(e)
        if key not in results:
            value = read_marked_value(e)
            results[key] = with_children(e, plain) if value is None else plain(value)
        return results[key]

    return plain(e)


__all__ = [
    "extremes_of",
    "extremum_of",
    "is_detached",
    "mark_detached",
    "mark_partials",
    "mark_shared",
    "partials_of",
    "read_marked_value",
    "remove_marks",
]
