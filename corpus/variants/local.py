"""Attention to a window around the query."""

from __future__ import annotations

from typing import Any

from cuir.spec import Specification


def local(left: int = 128, right: int = 128) -> Specification:
    """keep = q + (N - M) - left <= k <= q + (N - M) + right: left + 1 + right keys.

    Both ends belong to the window, as in FlashAttention's `window_size=(left, right)`. Bottom-right aligned.
    """

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any, *, M: int, N: int) -> Any:
        place = q_idx + (N - M)
        return (kv_idx >= place - left) & (kv_idx <= place + right)

    return Specification("local", mask_mod, doc=local.__doc__ or "")
