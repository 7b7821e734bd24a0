"""Causal attention without one block of pairs."""

from __future__ import annotations

from typing import Any

from cuir.spec import Specification


def qk_sparse(start: int = 128, length: int = 128) -> Specification:
    """keep = k <= q and not (start <= k < start + length and q < start + length).

    Keys of the span are closed to queries before its end; start = 0 gives rows with no key. Top-left aligned.
    """

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        end = start + length
        closed = (kv_idx >= start) & (kv_idx < end) & (q_idx < end)
        return (kv_idx <= q_idx) & ~closed

    return Specification("qk_sparse", mask_mod, doc=qk_sparse.__doc__ or "")
