"""A bias that depends on the relative position."""

from __future__ import annotations

from typing import Any

from cuir.spec import Specification


def relative_position(weight: float = 0.01) -> Specification:
    """score = s + weight * (k - q), no mask: f(q - k) of the relative position with a linear f, the same for every head."""

    def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score + weight * (kv_idx - q_idx)

    return Specification("relative_position", score_mod=score_mod, doc=relative_position.__doc__ or "")
