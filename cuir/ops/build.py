"""Expressions of primitives, for who makes programs: transfers of PyTorch's mods, faulty programs. Owns how a primitive's call is written; operators are nodes already."""

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


def cdiv(x: Expr, y: Expr) -> Call:
    return Call(Name("cdiv"), (x, y))


def arrival(barrier: Expr) -> Call:
    """One arrival at a barrier."""
    return Call(Attribute(barrier, "arrive"))


__all__ = ["arrival", "cast", "cdiv", "exp2", "greatest", "least", "log2", "magnitude", "tanh", "where"]
