"""Sigmoid attention: each key is weighed by itself."""

from __future__ import annotations

from typing import Any

import torch

from cuir.spec import Specification


def sigmoid(bias: float | None = None) -> Specification:
    """p = 1 / (1 + exp(-(s + bias))), no sum over the keys, no mask; bias = -log N if left out.

    Ramapuram et al. 2024, section 2: the bias makes the weights of N alike keys add up to about 1, as a softmax's do. Under a mask a dropped pair has
    p = 0, and N counts dropped keys, too. LSE is 0.
    """

    def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any, *, N: int) -> Any:
        return score + (-torch.log(score.new_full((), N)) if bias is None else bias)

    return Specification("sigmoid", score_mod=score_mod, doc=sigmoid.__doc__ or "", normalize="sigmoid")
