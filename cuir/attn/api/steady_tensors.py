"""Tensors that mods and masks hold, whose memory no graph reuses."""

from __future__ import annotations

import torch

from ...caching import WeakValueMemo

_STEADY: WeakValueMemo[int, torch.Tensor] = WeakValueMemo("flex.steady_tensors", key="id of the tensor", invalidation="the tensor died")


def mark_steady(tensors: tuple[torch.Tensor, ...]) -> None:
    """Register tensors that mods hold.

    Other tensors that reach the operator are results of the graph, which may reuse their memory.
    """
    for t in tensors:
        _STEADY[id(t)] = t


def is_steady(t: torch.Tensor) -> bool:
    """Return True if a call may be cached with a tensor that a graph passes."""
    return (_STEADY.get(id(t)) is t or isinstance(t, torch.nn.Parameter)) and not t.is_inference()


__all__ = ["is_steady", "mark_steady"]
