"""Dropout of weights, by a tensor that says what is kept."""

from __future__ import annotations

import torch

from cuir.spec import FunctionSpecification


def dropped_weights() -> FunctionSpecification:
    """O = (R * softmax(scale * Q K^T)) V, every query with every key; R has a factor for each pair: 0 for a weight that is dropped, else 1 / (1 - p). The softmax is that of all keys, and LSE with it."""

    def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, r: torch.Tensor, scale: float) -> dict[str, torch.Tensor]:
        group = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(group, 1) for x in (k, v))
        s = q @ k.mT * scale
        return {"O": (r * s.softmax(-1)) @ v, "LSE": s.logsumexp(-1)}

    return FunctionSpecification("dropped_weights", reference, doc=dropped_weights.__doc__ or "", parameters="R: Global[T, B, H, M, N]")
