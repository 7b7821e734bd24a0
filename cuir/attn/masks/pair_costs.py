"""Estimated instructions per pair of query and key, of a predicate and of reads of captured data."""

from __future__ import annotations

from ...ops.expressions import traits
from ...syntax.nodes import Binary, Expr, Literal, Name, Subscript
from ...syntax.walk import IdentityKey, children, names_read
from .predicate import linear

JOIN = 0.5
DIVISION = 12  # of integers, with a precomputed inverse of the divisor
READ, NEXT = 16, 2  # of an element anywhere, and of one next to that of the next key, which a warp reads together
DISTANCE_READ = 8.0  # of a term that depends on q - k alone: neighbouring pairs read neighbouring elements
MEAN_READ = 10  # where nothing is known of the places; the model of whole launches was fitted with it


def per_pair(e: Expr) -> float:
    """Return the instructions for a pair, each subexpression counted once.

    Parts that depend on the query alone cost nothing, on the key alone a share.
    """
    visited: set[IdentityKey] = set()

    def cost(e: Expr) -> float:
        if IdentityKey(e) in visited:
            return 0.0
        visited.add(IdentityKey(e))
        names = names_read(e)
        own_cost = _own_cost(e) if "k" in names else 0.0
        below = () if _limit(e) else children(e)
        return (own_cost if "q" in names else own_cost / 2) + sum(cost(x) for x in below if isinstance(x, Expr))

    return cost(e)


def _limit(e: Expr) -> bool:
    """Return True for a comparison of numbers that are linear in the key: of the column with a limit."""
    return isinstance(e, Binary) and bool(traits(e).compares) and linear(e.left) is not None and linear(e.right) is not None


def _own_cost(e: Expr) -> float:
    if isinstance(e, Name):
        return 0.0
    if isinstance(e, Subscript):
        along = [i for i in e.indices if isinstance(i, Expr) and "k" in names_read(i)]
        next_ones = len(along) == 1 and "q" not in names_read(e) and (x := linear(along[0])) is not None and x.k == 1
        return NEXT if next_ones else READ
    op_traits = traits(e)
    if op_traits.decided_by is not None:  # of truth values, which are combined as they are compared
        return JOIN
    if op_traits.divides_integers:
        return DIVISION if divides(e) else 1.0
    return float(op_traits.cost)


def divides(e: Expr) -> bool:
    """Return True for a division of integers that is no shift or mask by a power of two."""
    if not traits(e).divides_integers:
        return False
    by = e.right if isinstance(e, Binary) else None
    return not (isinstance(by, Literal) and isinstance(by.value, int) and by.value > 0 and by.value & (by.value - 1) == 0)


__all__ = ["divides", "per_pair"]
