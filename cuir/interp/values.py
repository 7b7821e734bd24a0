"""Representation of scalars and tiles of a batch of lanes; operations on them are in cuir/ops/meaning.

A scalar is a Python number when equal in all lanes, else a NumPy array [lanes] (i32: int64 kept within 32 bits; f32:
float32; bool). A tile is a torch tensor [lanes or 1, R, C]: f32, f16 and bf16 as float32 (rounded to the dtype), i32
as int32, bool as bool.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from ..ops.meaning import DivisionByZero, f32, wrap
from ..ops.meaning.tiles import HELD_DTYPES, STORED
from ..syntax.types import BOOL, DTYPES, I32, DType, TileType

Scalar = int | float | bool | np.ndarray
POISON: dict[DType, float | int | bool] = {d: math.nan if d.is_float else {I32: -0x21524111, BOOL: True}[d] for d in DTYPES.values()}


class Diverge(Exception):
    """Divergence of lanes: the batch splits into these parts before the statement runs again."""

    def __init__(self, parts: list[np.ndarray]):
        super().__init__(f"{len(parts)} parts")
        self.parts = parts


def split_by(values: np.ndarray) -> Diverge:
    """Make the split after which `values` [lanes] are equal within each part.

    Parts are in order of their first lane.
    """
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    return Diverge([np.flatnonzero(inverse == g) for g in np.argsort(first)])


def require_uniform(v: Any) -> Any:
    """Return the one value of a scalar.

    Raises Diverge if lanes differ.
    """
    if v.__class__ is not np.ndarray:
        return v
    if (v == v[0]).all():
        return v[0].item()
    raise split_by(v)


def collapse(v: Any) -> Any:
    """Return the same scalar, as a Python number if all lanes agree."""
    if v.__class__ is np.ndarray and (v == v[0]).all():
        return v[0].item()
    return v


def tile_operand(v: Any, device: torch.device) -> Any:
    """Convert a scalar to an operand of a tile operation: a Python number, or a tensor [lanes, 1, 1]."""
    if v.__class__ is not np.ndarray:
        return v
    if v.dtype == np.int64:
        v = v.astype(np.int32)
    return torch.from_numpy(v).to(device).reshape(-1, 1, 1)


def make_blank(kind: TileType, device: torch.device) -> torch.Tensor:
    """Make a stand-in for a tile in a run without data: its shape, one element of memory."""
    return torch.zeros((), dtype=HELD_DTYPES[kind.dtype], device=device).expand(1, kind.rows, kind.cols)


__all__ = [
    "HELD_DTYPES",
    "POISON",
    "STORED",
    "Diverge",
    "DivisionByZero",
    "Scalar",
    "collapse",
    "f32",
    "make_blank",
    "require_uniform",
    "split_by",
    "tile_operand",
    "wrap",
]
