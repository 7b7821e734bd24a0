"""Causal attention, bottom-right aligned."""

from __future__ import annotations

from typing import Any

from cuir.spec import Specification


def causal() -> Specification:
    """keep = k <= q + (N - M): the last query attends to every key.

    Bottom-right aligned, as FlashAttention since 2.1; equal to `causal_top_left` when M = N.
    """

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any, *, M: int, N: int) -> Any:
        return kv_idx <= q_idx + (N - M)

    return Specification("causal", mask_mod, doc=causal.__doc__ or "")
