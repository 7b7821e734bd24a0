"""Causal attention whose weights are sigmoids, with a bias that the kernel is given."""

from __future__ import annotations

from typing import Any

from cuir.spec import Specification


def causal_sigmoid(bias: float = -2.5) -> Specification:
    """p = 1 / (1 + exp(-(s + bias))) where k <= q + (N - M), no sum over the keys; LSE is 0. `sigmoid` with the mask of `causal`."""

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any, *, M: int, N: int) -> Any:
        return kv_idx <= q_idx + (N - M)

    def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any, *, bias: float) -> Any:
        return score + bias

    return Specification(
        "causal_sigmoid", mask_mod, score_mod, captured={"bias": bias}, doc=causal_sigmoid.__doc__ or "", normalize="sigmoid"
    )
