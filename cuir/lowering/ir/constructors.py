"""Constructors of operations of the table, for passes, which test traits and not names.

Each takes its operands and the type of the result; `exact`: it is computed as written, without contraction.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Attribute, SSAValue

from ...ops import entries
from ...ops.base import Op
from ...ops.traits import AT_MOST, EQUAL, LESS, Signs
from .ops import Apply, apply


def like(op: Apply, arguments: Sequence[SSAValue]) -> Apply:
    """Make the same operation, with a result of the same type, of other operands."""
    return apply(op.op, arguments, op.result.type, op.exact is not None)


def of_kind(op: Apply, arguments: Sequence[SSAValue], t: Attribute) -> Apply:
    """Make the same operation with a result of another type."""
    return apply(op.op, arguments, t)


def _of(entry: Op, t: Attribute, exact: bool, *arguments: SSAValue) -> Apply:
    return apply(entry.name, arguments, t, exact)


# ---- arithmetic
def add(x: SSAValue, y: SSAValue, t: Attribute, exact: bool = False) -> Apply:
    """Make x + y."""
    return _of(entries.ADD, t, exact, x, y)


def subtract(x: SSAValue, y: SSAValue, t: Attribute, exact: bool = False) -> Apply:
    """Make x - y."""
    return _of(entries.SUBTRACT, t, exact, x, y)


def multiply(x: SSAValue, y: SSAValue, t: Attribute, exact: bool = False) -> Apply:
    """Make x * y."""
    return _of(entries.MULTIPLY, t, exact, x, y)


def negate(x: SSAValue, t: Attribute, exact: bool = False) -> Apply:
    """Make -x."""
    return _of(entries.NEGATE, t, exact, x)


def least(x: SSAValue, y: SSAValue, t: Attribute, exact: bool = False) -> Apply:
    """Make the least of two operands."""
    return _of(entries.LEAST, t, exact, x, y)


def greatest(x: SSAValue, y: SSAValue, t: Attribute, exact: bool = False) -> Apply:
    """Make the greatest of two operands."""
    return _of(entries.GREATEST, t, exact, x, y)


def exp2(x: SSAValue, t: Attribute, exact: bool = False) -> Apply:
    """Make 2 to the power of x."""
    return _of(entries.EXP2, t, exact, x)


# ---- truth values and bits
def compare(signs: Signs, operands: Sequence[SSAValue], t: Attribute, exact: bool = False) -> Apply:
    """Make the comparison that holds for these signs of the difference of two operands."""
    return _of(entries.COMPARISONS[signs], t, exact, *operands)


def less(x: SSAValue, y: SSAValue, t: Attribute, exact: bool = False) -> Apply:
    """Make x < y."""
    return compare(LESS, (x, y), t, exact)


def at_most(x: SSAValue, y: SSAValue, t: Attribute, exact: bool = False) -> Apply:
    """Make x <= y."""
    return compare(AT_MOST, (x, y), t, exact)


def equal(x: SSAValue, y: SSAValue, t: Attribute, exact: bool = False) -> Apply:
    """Make x == y."""
    return compare(EQUAL, (x, y), t, exact)


def make_or(x: SSAValue, y: SSAValue, t: Attribute) -> Apply:
    """Make the elementwise or of truth values."""
    return _of(entries.OR, t, False, x, y)


def dual(op: Apply, operands: Sequence[SSAValue], t: Attribute, exact: bool = False) -> Apply:
    """Make the dual of `and` or `or`: on negated operands it gives the negated result (De Morgan)."""
    return _of(entries.DUALS[op.op], t, exact, *operands)


def exclusive_or(x: SSAValue, y: SSAValue, t: Attribute) -> Apply:
    """Make the exclusive or of the bits of numbers."""
    return _of(entries.EXCLUSIVE_OR, t, False, x, y)


# ---- choices, conversions, tiles
def choose(condition: SSAValue, x: SSAValue, y: SSAValue, t: Attribute) -> Apply:
    """Make a choice of x or y by a scalar condition."""
    return _of(entries.CHOOSE, t, False, condition, x, y)


def where(condition: SSAValue, x: SSAValue, y: SSAValue, t: Attribute) -> Apply:
    """Make a choice of x or y, element by element."""
    return _of(entries.CHOOSE_BY_ELEMENT, t, False, condition, x, y)


def cast(x: SSAValue, t: Attribute) -> Apply:
    """Make a conversion to the dtype of the result."""
    return _of(entries.CAST, t, False, x)


def full(x: SSAValue, t: Attribute) -> Apply:
    """Make a tile of one number."""
    return _of(entries.FULL, t, False, x)


__all__ = [
    "add",
    "at_most",
    "cast",
    "choose",
    "compare",
    "dual",
    "equal",
    "exclusive_or",
    "exp2",
    "full",
    "greatest",
    "least",
    "less",
    "like",
    "make_or",
    "multiply",
    "negate",
    "of_kind",
    "subtract",
    "where",
]
