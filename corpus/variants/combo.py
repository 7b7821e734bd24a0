"""PrefixLM, soft-capped scores and sigmoid weights together."""

from __future__ import annotations

from typing import Any

from corpus.variants.prefix_lm import prefix_lm
from corpus.variants.sigmoid import sigmoid
from corpus.variants.softcap import softcap
from cuir.spec import Specification


def combo(prefix: int = 256, cap: float = 20.0, bias: float | None = None) -> Specification:
    """keep = k < prefix or k <= q, p = 1 / (1 + exp(-(cap * tanh(s / cap) + bias))); bias = -log N if left out.

    CuBridge's 'PrefixLM + Softcap + Sigmoid', which FlexAttention cannot express: the mask of `prefix_lm`, the score of `softcap`, the weights of `sigmoid`.
    """
    capped, weighed = softcap(cap).score_mod, sigmoid(bias).score_mod
    assert capped is not None and weighed is not None

    def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any, *, N: int) -> Any:
        return weighed(capped(score, b, h, q_idx, kv_idx), b, h, q_idx, kv_idx, N=N)

    return Specification("combo", prefix_lm(prefix).mask_mod, score_mod, doc=combo.__doc__ or "", normalize="sigmoid")
