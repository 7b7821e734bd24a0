"""Causal attention to a window of the last keys."""

from __future__ import annotations

from typing import Any

from cuir.spec import Specification


def sliding_window(window: int = 256) -> Specification:
    """keep = 0 <= q + (N - M) - k <= window: the key at the query's own place and `window` keys before it, window + 1 in all.

    Counts as FlashAttention's `window_size=(window, 0)`; many papers call this a window of window + 1. Bottom-right aligned.
    """

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any, *, M: int, N: int) -> Any:
        distance = q_idx + (N - M) - kv_idx
        return (distance >= 0) & (distance <= window)

    return Specification("sliding_window", mask_mod, doc=sliding_window.__doc__ or "")
