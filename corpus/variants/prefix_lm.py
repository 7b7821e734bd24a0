"""PrefixLM: full attention to a prefix, causal behind it."""

from __future__ import annotations

from typing import Any

from cuir.spec import Specification


def prefix_lm(prefix: int = 256) -> Specification:
    """keep = k < prefix or k <= q: the first `prefix` keys are open to every query.

    Exactly `prefix` keys (`<`, not `<=`); causal top-left aligned, as FlexAttention's prefix example (`prefix_mask | causal_mask`).
    The variant of Raffel et al. 2020 (T5), figure 4.
    """

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (kv_idx < prefix) | (kv_idx <= q_idx)

    return Specification("prefix_lm", mask_mod, doc=prefix_lm.__doc__ or "")
