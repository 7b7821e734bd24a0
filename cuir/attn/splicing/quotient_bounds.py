"""Equal quotients as bounds of a column, so that a mask divides once a row and not once a column.

A mask of documents of equal lengths keeps pairs with `q // c == k // c`. For c > 0 that is
`q // c * c <= k < q // c * c + c`: two comparisons of a column with numbers of its row, of which the upper one always
holds beside `k <= q`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from ...ops.expressions import comparison, traits
from ...syntax.nodes import Binary, Expr
from ...syntax.walk import names_read, with_children
from ..masks.pair_costs import divides
from ..masks.predicate import positive

_AT_LEAST, _BELOW = comparison((0, 1)), comparison((-1,))


def bound_columns(keep: Expr, column: str) -> Expr:
    """Return an equal predicate in which quotients of the column, `k` or `q`, are bounds of it.

    Quotients by a power of two stay where both bounds are needed, as they are shifts. Divisors are assumed positive,
    like those of blocks in closed form.
    """
    if _joins(keep):
        parts = _conjuncts(keep)
        new = [_bounds(part, column, parts) if not _joins(part) else part for part in parts]
        new = [bound_columns(x, column) if x is part else x for x, part in zip(new, parts, strict=True)]
        if all(x is part for x, part in zip(new, parts, strict=True)):
            return keep
        return reduce(lambda x, y: Binary("&", x, y), new)
    bounds = _bounds(keep, column, ())
    if bounds is not keep or (isinstance(keep, Binary) and traits(keep).compares):
        return bounds
    return with_children(keep, lambda child: bound_columns(child, column) if isinstance(child, Expr) else child)


def _joins(e: Expr) -> bool:
    """Return True for `x & y`."""
    return isinstance(e, Binary) and traits(e).decided_by is False


def _conjuncts(e: Expr) -> list[Expr]:
    return [*_conjuncts(e.left), *_conjuncts(e.right)] if isinstance(e, Binary) and _joins(e) else [e]


def _bounds(e: Expr, column: str, conjuncts: Sequence[Expr]) -> Expr:
    """Return the bounds of an equality of two quotients, or the expression itself.

    `conjuncts` are conditions that hold where it counts.
    """
    if not isinstance(e, Binary) or traits(e).compares != (0,):
        return e
    for x, y in ((e.left, e.right), (e.right, e.left)):
        if not (isinstance(x, Binary) and isinstance(y, Binary) and traits(x).rounds == traits(y).rounds == "down" and x.right == y.right):
            continue
        divisor = x.right
        if column not in names_read(x.left) or names_read(y) & {column} or not positive(divisor) or names_read(divisor) & {"q", "k"}:
            continue
        least = Binary("*", y, divisor)
        bounds = []
        if not any(_says(c, x.left, y.left) for c in conjuncts):
            bounds.append(Binary(_AT_LEAST, x.left, least))
        if not any(_says(c, y.left, x.left) for c in conjuncts):
            bounds.append(Binary(_BELOW, x.left, Binary("+", least, divisor)))
        if len(bounds) < 2 or divides(x):
            return reduce(lambda a, b: Binary("&", a, b), bounds) if bounds else e
    return e


def _says(condition: Expr, greater: Expr, less: Expr) -> bool:
    """Return True if a condition says greater >= less."""
    if not isinstance(condition, Binary):
        return False
    signs = traits(condition).compares
    return (condition.left, condition.right, -1 not in (signs or (-1,))) == (greater, less, True) or (
        condition.left,
        condition.right,
        1 not in (signs or (1,)),
    ) == (less, greater, True)


__all__ = ["bound_columns"]
