"""A window around the query, and tokens that are global both ways."""

from __future__ import annotations

from typing import Any

from cuir.spec import Specification


def global_sliding_window(left: int = 128, right: int = 128, tokens: int = 16) -> Specification:
    """keep = (q >= k and (q - k <= left or k < tokens)) or (k >= q and (k - q <= right or q < tokens)).

    The first `tokens` keys are seen by every later query, the first `tokens` queries see every later key; both ends of the window belong
    to it. FlashMask (Wang et al. 2024), figure 1; top-left aligned.
    """

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        before = (q_idx >= kv_idx) & ((q_idx - kv_idx <= left) | (kv_idx < tokens))
        behind = (kv_idx >= q_idx) & ((kv_idx - q_idx <= right) | (q_idx < tokens))
        return before | behind

    return Specification("global_sliding_window", mask_mod, doc=global_sliding_window.__doc__ or "")
