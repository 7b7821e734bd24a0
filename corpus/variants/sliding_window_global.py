"""Causal attention to a window of the last keys, and to the first keys."""

from __future__ import annotations

from typing import Any

from cuir.spec import Specification


def sliding_window_global(window: int = 256, tokens: int = 128) -> Specification:
    """keep = k <= q' and (q' - k <= window or k < tokens), q' = q + (N - M): the window of `sliding_window` and the first `tokens` keys.

    Causal throughout, unlike `global_sliding_window`. Longformer's global tokens (Beltagy et al. 2020) in a causal model; with few tokens,
    the attention sinks of StreamingLLM (Xiao et al. 2023). window + 1 keys in the window; bottom-right aligned.
    """

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any, *, M: int, N: int) -> Any:
        distance = q_idx + (N - M) - kv_idx
        return (distance >= 0) & ((distance <= window) | (kv_idx < tokens))

    return Specification("sliding_window_global", mask_mod, doc=sliding_window_global.__doc__ or "")
