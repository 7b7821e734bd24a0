"""Numbers that a mod converts to f16 or bf16: values in f32, rounded as PyTorch rounds them."""

from __future__ import annotations

from dataclasses import replace

import torch

from ...ops.build_calls import cast, where
from ...syntax.nodes import Binary, Expr, Name
from ...syntax.types import BF16, F16, F32, I32, DType
from ...syntax.walk import names_read
from .proxy import Operands, Proxy, lift, literal, promote, to
from .refusal import refuse

HALVES = {torch.float16: F16, torch.bfloat16: BF16}
COMPARED = ("eq", "equal", "ne", "not_equal", "lt", "less", "le", "less_equal", "gt", "greater", "ge", "greater_equal")
SCORE = "S"  # the scores as the kernel calls them
_TORCH = {d: t for t, d in HALVES.items()}


def in_half(p: Proxy, dtype: DType) -> Proxy:
    """Return the number rounded to f16 or bf16; operations on it are rounded, too, as PyTorch's are.

    Raises CuirError X120 for a value that depends on the score: scores are computed up to rounding, so the value could
    fall on either side of a step.
    """
    if SCORE in names_read(p.expr):
        refuse(
            f"a conversion of the score to {dtype} cannot become part of a kernel, which computes scores in f32",
            "leave it out; indices, and what is read from captured tensors, can be converted",
        )
    value = None if p.value is None else float(torch.tensor(float(p.value), dtype=_TORCH[dtype]))
    if literal(p):
        return replace(lift(value), precision=dtype)
    tile: Expr = p.expr if p.varies else where(Binary("==", Name("k"), Name("k")), p.expr, p.expr)  # scalars are f32
    rounded = cast(cast(tile, dtype), F32)
    return Proxy(rounded, F32, True, value, p.numbers if value is not None else frozenset(), p.pins, precision=dtype)


def in_f32(p: Proxy) -> Proxy:
    """Return the number as an f32, to which it may have been rounded before; operations on it are f32's."""
    number = to(p, F32)
    return number if number.precision is None else replace(number, precision=None)


def kind_of(operands: Operands) -> DType | None:
    """Return the half precision in which PyTorch computes an operation.

    It is the one that all floating-point tensors have.
    """
    kinds = {o.precision for o in operands if isinstance(o, Proxy) and o.element == F32 and not o.number}
    return kinds.pop() if len(kinds) == 1 else None


def promote_operands(name: str, operands: Operands) -> Operands:
    """Promote operands as PyTorch does.

    Integers beside half precision become it, and so do numbers that are compared with it.
    """
    kind = kind_of(operands)
    if kind is None:
        return operands

    def promote(o: object) -> object:
        if isinstance(o, Proxy) and o.element == I32 and not o.number:
            return in_half(to(o, F32), kind)
        if name in COMPARED and isinstance(o, (int, float)) and not isinstance(o, bool):
            return float(torch.tensor(float(o), dtype=_TORCH[kind]))
        return o

    return tuple(map(promote, operands))


def round_like(result: Proxy, operands: Operands) -> Proxy:
    """Return the result of an operation in the dtype that PyTorch's promotion gives it."""
    kind = kind_of(operands)
    if kind is None or result.element != F32 or result.precision is not None:
        return result
    return in_half(result, kind)


def unify_dtypes(*values: object) -> list[Proxy]:
    """Return values in one dtype, as PyTorch promotes tensors that it joins."""
    ps = promote_operands("cat", tuple(map(lift, values)))
    kind = kind_of(ps)
    return [p if kind is not None or p.element != F32 else in_f32(p) for p in promote(*ps)]
