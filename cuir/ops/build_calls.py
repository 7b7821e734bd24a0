"""Constructors of calls of primitives, for code that makes programs.

Such are transfers of mods and faulty programs. Operators are nodes already.
"""

from __future__ import annotations

from ..syntax.nodes import Attribute, Call, Expr, Name
from ..syntax.types import DType


def where(cond: Expr, x: Expr, y: Expr) -> Call:
    return Call(Name("where"), (cond, x, y))


def cast(x: Expr, dtype: DType) -> Call:
    return Call(Name("cast"), (x, Name(dtype.name)))


def magnitude(x: Expr) -> Call:
    return Call(Name("abs"), (x,))


def least(*xs: Expr) -> Call:
    return Call(Name("min"), xs)


def greatest(*xs: Expr) -> Call:
    return Call(Name("max"), xs)


def exp2(x: Expr) -> Call:
    return Call(Name("exp2"), (x,))


def log2(x: Expr) -> Call:
    return Call(Name("log2"), (x,))


def tanh(x: Expr) -> Call:
    return Call(Name("tanh"), (x,))


def sqrt(x: Expr) -> Call:
    return Call(Name("sqrt"), (x,))


def floor(x: Expr) -> Call:
    return Call(Name("floor"), (x,))


def nearest(x: Expr) -> Call:
    return Call(Name("round"), (x,))


def sin(x: Expr) -> Call:
    return Call(Name("sin"), (x,))


def cos(x: Expr) -> Call:
    return Call(Name("cos"), (x,))


def atan(x: Expr) -> Call:
    return Call(Name("atan"), (x,))


def log1p(x: Expr) -> Call:
    return Call(Name("log1p"), (x,))


def erf(x: Expr) -> Call:
    return Call(Name("erf"), (x,))


def erfc(x: Expr) -> Call:
    return Call(Name("erfc"), (x,))


def power(x: Expr, y: Expr) -> Call:
    return Call(Name("power"), (x, y))


def fmod(x: Expr, y: Expr) -> Call:
    return Call(Name("fmod"), (x, y))


def bit(x: Expr, i: Expr) -> Call:
    """Build the test of a bit of a word."""
    return Call(Name("bit"), (x, i))


def cdiv(x: Expr, y: Expr) -> Call:
    return Call(Name("cdiv"), (x, y))


def arrival(barrier: Expr) -> Call:
    """Build one arrival at a barrier."""
    return Call(Attribute(barrier, "arrive"))


__all__ = [
    "arrival",
    "atan",
    "bit",
    "cast",
    "cdiv",
    "cos",
    "erf",
    "erfc",
    "exp2",
    "floor",
    "fmod",
    "greatest",
    "least",
    "log1p",
    "log2",
    "magnitude",
    "nearest",
    "power",
    "sin",
    "sqrt",
    "tanh",
    "where",
]
