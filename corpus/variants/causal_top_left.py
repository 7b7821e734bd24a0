"""Causal attention, top-left aligned."""

from __future__ import annotations

from typing import Any

from cuir.spec import Specification


def causal_top_left() -> Specification:
    """keep = k <= q: the first query attends to the first key only.

    Top-left aligned, as in FlexAttention's examples and `scaled_dot_product_attention(is_causal=True)`.
    """

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return kv_idx <= q_idx

    return Specification("causal_top_left", mask_mod, doc=causal_top_left.__doc__ or "")
