"""Attention with what goes around it added."""

from __future__ import annotations

import torch

from cuir.spec import FunctionSpecification


def residual_attention() -> FunctionSpecification:
    """O = X + softmax(scale * Q K^T) V, every query with every key; X is of the shape of O. The sum is rounded once."""

    def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, x: torch.Tensor, scale: float) -> dict[str, torch.Tensor]:
        group = q.shape[1] // k.shape[1]
        k, v = (y.repeat_interleave(group, 1) for y in (k, v))
        return {"O": x + (q @ k.mT * scale).softmax(-1) @ v}

    return FunctionSpecification(
        "residual_attention", reference, doc=residual_attention.__doc__ or "", parameters="X: Global[T, B, H, M, D]"
    )
