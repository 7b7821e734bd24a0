"""Tensors for the kernels of `typed.py` and of `corpus/faulty`, from their checked signatures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from cuir.arguments.binding import TORCH
from cuir.checking.checked import Checked


def arguments(checked: Checked, dims: Mapping[str, int], seed: int = 0) -> dict[str, Any]:
    """By name: normal floats, small integers, NaN where the kernel writes; `n` is 2 and `scale` 0.75."""
    g = torch.Generator().manual_seed(seed)
    result: dict[str, Any] = {s.name: 2 if s.dtype.name == "i32" else 0.75 for s in checked.scalars}
    for t in checked.tensors:
        shape = [dims[d] if isinstance(d, str) else d for d in t.dims]
        if t.dtype.name == "i32":
            result[t.name] = torch.randint(-3, 4, shape, generator=g, dtype=torch.int32)
        elif t.written:
            result[t.name] = torch.full(shape, float("nan"), dtype=TORCH[t.dtype])
        else:
            result[t.name] = torch.randn(shape, generator=g).to(TORCH[t.dtype])
    return result
