"""Python's numbers as literals of CuIR."""

from __future__ import annotations

import math

import torch

from ...syntax.nodes import Expr, Literal, Name, Unary
from .refusal import refuse

INF = Name("inf")


def holds(x: int | float) -> bool:
    """Return True if a kernel can hold this finite number."""
    return -(2**31) <= x < 2**31 if isinstance(x, int) else abs(x) <= torch.finfo(torch.float32).max


def literal_of(x: int | float) -> Expr:
    if isinstance(x, float) and math.isnan(x):
        refuse("a kernel has no use for NaN", code="U417")
    if not holds(x) and not (isinstance(x, float) and math.isinf(x)):
        kind, hint = (
            ("integers of a kernel have 32 bits", f"{x}.0 is a float")
            if isinstance(x, int)
            else ("floats of a kernel are those of f32", f"{'-' * (x < 0)}math.inf")
        )
        refuse(f"{kind}, found {x}", hint, "U417")
    if isinstance(x, float) and math.isinf(x):
        return INF if x > 0 else Unary("-", INF)
    return Literal(x) if x >= 0 else Unary("-", Literal(-x))


__all__ = ["INF", "holds", "literal_of"]
