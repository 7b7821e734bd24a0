"""A cache of constant tensors on a device.

Tensors that are created while a CUDA graph is captured are not cached, since only a replay of the graph would write
them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ...caching import Memo
from .call_inputs import capturing

Key = tuple[Callable[..., torch.Tensor], tuple[int, ...], torch.dtype, torch.device]
_CACHE: Memo[Key, torch.Tensor] = Memo(
    "flex.constants", key="function that makes it, sizes, dtype, device", invalidation="never: nobody writes to them", limit=128
)


def constant(make: Callable[..., torch.Tensor], *sizes: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a cached constant tensor, which must not be written to.

    It is make(*sizes, dtype=..., device=...), called as torch.ones and torch.arange are.
    """
    key = make, sizes, dtype, device
    tensor = _CACHE.get(key)
    if tensor is None:
        tensor = make(*sizes, dtype=dtype, device=device)
        if not capturing():
            _CACHE[key] = tensor
    return tensor


__all__ = ["constant"]
