"""Values of traced expressions with torch, on any device: a predicate of index tensors gives the mask of many pairs at once.

Owns an elementwise meaning of what tracing produces, the kernel's: i32 and f32 arithmetic, reads outside of a tensor give 0.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..diagnostics import CuirError
from ..nodes import Binary, Call, Expr, IfExp, Literal, Name, Subscript, Unary
from .proxy import CONSTANTS

_HALVES = {"f16": torch.float16, "bf16": torch.bfloat16}
Value = Any  # a Python number or a tensor; they broadcast


def evaluate(e: Expr, names: Mapping[str, Value]) -> Value:
    """The value of an expression of numbers and i32, f32 or bool tensors. Raises CuirError N101 for a name without a value, X140 for what is no pure arithmetic."""
    return _Evaluation(names).expr(e)


class _Evaluation:
    def __init__(self, names: Mapping[str, Value]):
        self.names = names
        self.known: dict[int, Value] = {}  # tracing shares subexpressions

    def expr(self, e: Expr) -> Value:
        if id(e) not in self.known:
            self.known[id(e)] = self.fresh(e)
        return self.known[id(e)]

    def fresh(self, e: Expr) -> Value:
        if isinstance(e, Literal):
            return e.value
        if isinstance(e, Name):
            return self.name(e)
        if isinstance(e, Unary):
            return _UNARY[e.op](self.expr(e.operand))
        if isinstance(e, Binary):
            left, right = self.expr(e.left), self.expr(e.right)
            return _BINARY[e.op](left, _divisor(right, e) if e.op in ("//", "%") else right)
        if isinstance(e, IfExp):
            cond = self.expr(e.cond)
            if isinstance(cond, torch.Tensor):
                return torch.where(cond, self.expr(e.then), self.expr(e.other))
            return self.expr(e.then if cond else e.other)
        if isinstance(e, Subscript) and isinstance(e.value, Name):
            return _read(self.name(e.value), [self.expr(i) for i in e.indices])  # type: ignore[arg-type]
        if isinstance(e, Call) and isinstance(e.func, Name) and e.func.id == "cast":
            dtype = e.args[1]
            return _cast(self.expr(e.args[0]), dtype.id if isinstance(dtype, Name) else "")
        if isinstance(e, Call) and isinstance(e.func, Name) and e.func.id in _CALLS:
            return _CALLS[e.func.id](*(self.expr(a) for a in e.args))
        raise CuirError.of("X140", "an expression of pure arithmetic was expected", e.span)

    def name(self, e: Name) -> Value:
        if e.id in self.names:
            return self.names[e.id]
        if e.id in CONSTANTS:
            return CONSTANTS[e.id]
        if e.id == "inf":
            return torch.inf
        raise CuirError.of("N101", f"`{e.id}` has no value here", e.span)


def _read(tensor: torch.Tensor, indices: list[Value]) -> torch.Tensor:
    """Elements of a tensor, 0 outside of it."""
    inside: Value = True
    safe = []
    for i, size in zip(indices, tensor.shape):
        inside = inside & ((i >= 0) & (i < size))
        safe.append(i.clamp(0, max(0, size - 1)).long() if isinstance(i, torch.Tensor) else min(max(i, 0), max(0, size - 1)))
    if tensor.numel() == 0:
        shapes = [i.shape for i in indices if isinstance(i, torch.Tensor)]
        return torch.zeros(torch.broadcast_shapes(*shapes), dtype=tensor.dtype, device=tensor.device)
    return torch.where(inside, tensor[tuple(safe)], 0) if isinstance(inside, torch.Tensor) else tensor[tuple(safe)] * inside


def _divisor(x: Value, e: Binary) -> Value:
    if isinstance(x, torch.Tensor):
        return torch.where(x == 0, 1, x)  # of a pair that something else decides
    if x == 0:
        raise CuirError.of("T154", "the divisor is 0", e.span)
    return x


def _cast(x: Value, dtype: str) -> Value:
    if dtype in _HALVES:
        return torch.as_tensor(x, dtype=torch.float32).to(_HALVES[dtype]).to(torch.float32)
    if not isinstance(x, torch.Tensor):
        return {"bool": bool, "i32": int, "f32": float}[dtype](x)
    return x.to({"bool": torch.bool, "i32": torch.int32, "f32": torch.float32}[dtype])


def _not(x: Value) -> Value:
    return not x if isinstance(x, bool) else ~x


def _extremum(scalars: Callable[..., Value], tensors: Callable[..., torch.Tensor]) -> Callable[..., Value]:
    def two(a: Value, b: Value) -> Value:
        if not isinstance(a, torch.Tensor) and not isinstance(b, torch.Tensor):
            return scalars(a, b)
        like = a if isinstance(a, torch.Tensor) else b
        return tensors(*(x if isinstance(x, torch.Tensor) else torch.full((), x, dtype=like.dtype, device=like.device) for x in (a, b)))

    return lambda *xs: functools.reduce(two, xs)


def _elementwise(f: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Value], Value]:
    return lambda x: f(x) if isinstance(x, torch.Tensor) else f(torch.tensor(x, dtype=torch.float32)).item()


def _where(cond: Value, x: Value, y: Value) -> Value:
    return torch.where(cond, x, y) if isinstance(cond, torch.Tensor) else x if cond else y


_UNARY: dict[str, Callable[[Value], Value]] = {"-": operator.neg, "~": _not, "not": _not}
_BINARY: dict[str, Callable[[Value, Value], Value]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "//": operator.floordiv, "%": operator.mod,
    "&": operator.and_, "|": operator.or_, "^": operator.xor, "and": operator.and_, "or": operator.or_,
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_CALLS: dict[str, Callable[..., Value]] = {
    "min": _extremum(min, torch.minimum), "max": _extremum(max, torch.maximum), "abs": abs, "where": _where, "cdiv": lambda a, b: -(-a // b),
    "exp2": _elementwise(torch.exp2), "log2": _elementwise(torch.log2), "tanh": _elementwise(torch.tanh),
}  # fmt: skip

__all__ = ["evaluate"]
