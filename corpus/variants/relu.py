"""ReLU attention: no exponential, no sum over the keys."""

from __future__ import annotations

from cuir.spec import Specification


def relu() -> Specification:
    """p = max(s, 0) / N, no mask.

    Wortsman et al. 2023, "Replacing softmax with ReLU in Vision Transformers": divided by the number of keys, those that a mask drops included. Weights are
    kept as N p in the dtype of V, so in float16 s is at most 65504. LSE is 0.
    """
    return Specification("relu", doc=relu.__doc__ or "", normalize="relu")
