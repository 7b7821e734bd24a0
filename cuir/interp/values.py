"""Scalars and tiles of a batch of lanes: how they are held, and arithmetic on scalars.

A scalar is a Python number when equal in all lanes, else a NumPy array [lanes] (i32: int64 kept within 32 bits; f32: float32; bool). A tile is a
torch tensor [lanes or 1, R, C]: f32, f16 and bf16 as float32 (rounded to the dtype), i32 as int32, bool as bool.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ..types import BF16, BOOL, F16, F32, I32, DType

Scalar = int | float | bool | np.ndarray
HELD = {F32: torch.float32, F16: torch.float32, BF16: torch.float32, I32: torch.int32, BOOL: torch.bool}
STORED = {F32: torch.float32, F16: torch.float16, BF16: torch.bfloat16, I32: torch.int32, BOOL: torch.bool}
POISON: dict[DType, float | int | bool] = {F32: math.nan, F16: math.nan, BF16: math.nan, I32: -0x21524111, BOOL: True}
_LOW, _HIGH = -(2**31), 2**31 - 1


class Diverge(Exception):
    """Lanes want to go different ways: the batch splits into these parts before the statement runs again."""

    def __init__(self, parts: list[np.ndarray]):
        super().__init__(f"{len(parts)} parts")
        self.parts = parts


class DivisionByZero(Exception):
    """An integer division by zero; reported with its place by whoever runs the operation."""


def split_by(values: np.ndarray) -> Diverge:
    """The split that makes `values` [lanes] equal within each part; parts in order of their first lane."""
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    return Diverge([np.flatnonzero(inverse == g) for g in np.argsort(first)])


def uniform(v: Any) -> Any:
    """The one value of a scalar; raises Diverge if lanes differ."""
    if v.__class__ is not np.ndarray:
        return v
    if (v == v[0]).all():
        return v[0].item()
    raise split_by(v)


def collapse(v: Any) -> Any:
    """The same scalar, as a Python number if all lanes agree."""
    if v.__class__ is np.ndarray and (v == v[0]).all():
        return v[0].item()
    return v


def wrap(v: Any) -> Any:
    """An integer scalar reduced to 32 bits, two's complement."""
    if v.__class__ is int:
        return v if _LOW <= v <= _HIGH else (v - _LOW) % 2**32 + _LOW
    return (v - _LOW) % 2**32 + _LOW


def f32(v: Any) -> Any:
    """A float scalar rounded to f32."""
    if v.__class__ is np.ndarray:
        return v.astype(np.float32, copy=False)
    return float(np.float32(v))


def tile_operand(v: Any, device: torch.device) -> Any:
    """A scalar as an operand of a tile operation: a Python number, or a tensor [lanes, 1, 1]."""
    if v.__class__ is not np.ndarray:
        return v
    if v.dtype == np.int64:
        v = v.astype(np.int32)
    return torch.from_numpy(v).to(device).reshape(-1, 1, 1)


def round_to(t: torch.Tensor, dtype: DType) -> torch.Tensor:
    """A fresh float32 tensor rounded to the dtype, in place."""
    if dtype is F16 or dtype is BF16:
        t.copy_(t.to(STORED[dtype]))
    return t


# ---- arithmetic on scalars
def _quotient(a: Any, b: Any) -> Any:
    if a.__class__ is np.ndarray or b.__class__ is np.ndarray:
        return np.divide(a, b, dtype=np.float32)
    return float(np.float32(a) / np.float32(b))


def _nonzero(b: Any) -> Any:
    if not (b.all() if b.__class__ is np.ndarray else b):
        raise DivisionByZero
    return b


def _minimum(a: Any, b: Any) -> Any:
    if a.__class__ is np.ndarray or b.__class__ is np.ndarray:
        return np.fmin(a, b)
    return (b if a != a or b < a else a) if b == b else a


def _maximum(a: Any, b: Any) -> Any:
    if a.__class__ is np.ndarray or b.__class__ is np.ndarray:
        return np.fmax(a, b)
    return (b if a != a or b > a else a) if b == b else a


COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
INTEGER: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: wrap(a + b),
    "-": lambda a, b: wrap(a - b),
    "*": lambda a, b: wrap(a * b),
    "//": lambda a, b: wrap(a // _nonzero(b)),
    "%": lambda a, b: a % _nonzero(b),
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "cdiv": lambda a, b: wrap(-((-a) // _nonzero(b))),
    "min": _minimum,
    "max": _maximum,
}
FLOAT: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: f32(a + b),
    "-": lambda a, b: f32(a - b),
    "*": lambda a, b: f32(a * b),
    "/": _quotient,
    "min": _minimum,
    "max": _maximum,
}
FLOAT_UNARY: dict[str, Callable[[Any], Any]] = {
    "exp2": lambda a: np.exp2(np.float64(a)),
    "log2": lambda a: np.log2(np.float64(a)),
    "tanh": lambda a: np.tanh(np.float64(a)),
    "abs": abs,
    "neg": lambda a: -a,
}


def float_unary(name: str) -> Callable[[Any], Any]:
    """The function on f32 scalars: evaluated in double, rounded once."""
    function = FLOAT_UNARY[name]
    return lambda a: f32(function(a))


def cast_scalar(v: Any, source: DType, target: DType) -> Any:
    """A scalar of another dtype: f32 to i32 truncates and saturates (a NaN gives 0), to bool compares with 0."""
    lanes = v.__class__ is np.ndarray
    if target == source:
        return v
    if target == BOOL:
        return v != 0
    if target == F32:
        return v.astype(np.float32) if lanes else f32(float(v))
    if source == BOOL:
        return v.astype(np.int64) if lanes else int(v)
    whole = np.clip(np.trunc(np.nan_to_num(np.asarray(v, dtype=np.float64), nan=0.0, posinf=_HIGH, neginf=_LOW)), _LOW, _HIGH).astype(
        np.int64
    )
    return whole if lanes else int(whole)
