"""Products of float16 on a CPU, added up in float32 and rounded once, as a GPU does.

PyTorch computes the same there, some thirty times more slowly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeGuard

import torch
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from torch._ops import OpOverload

_PRODUCTS = frozenset(("mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "dot"))


class HalfProducts(TorchDispatchMode):
    """Mode that computes products of float16 by float32."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # whose import takes seconds

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: tuple[object, ...] = (), kwargs: Mapping[str, object] | None = None
    ) -> object:
        kwargs = kwargs or {}
        if func.overloadpacket.__name__ not in _PRODUCTS or kwargs.get("out") is not None or not any(map(_is_half, args)):
            return func(*args, **kwargs)
        result: torch.Tensor = func(*(a.float() if _is_half(a) else a for a in args), **kwargs)
        return result.half()


def _is_half(x: object) -> TypeGuard[torch.Tensor]:
    return isinstance(x, torch.Tensor) and x.dtype == torch.float16 and x.device.type == "cpu"
