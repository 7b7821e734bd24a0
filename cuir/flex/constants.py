"""Tensors on a device that never change: made once, and kept, but not where a CUDA graph that is captured would be what writes them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

from .inputs import capturing

LIMIT = 128
_KEPT: OrderedDict[tuple[Any, ...], torch.Tensor] = OrderedDict()


def constant(make: Callable[..., torch.Tensor], *sizes: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """make(*sizes, dtype=..., device=...), as torch.ones and torch.arange are called; not to be written to."""
    key = make, sizes, dtype, device
    found = _KEPT.get(key)
    if found is None:
        found = make(*sizes, dtype=dtype, device=device)
        if not capturing():
            _KEPT[key] = found
            while len(_KEPT) > LIMIT:
                _KEPT.popitem(last=False)
    return found


__all__ = ["constant"]
