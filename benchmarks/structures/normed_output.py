"""Attention whose results are normed, each head for itself."""

from __future__ import annotations

import torch

from cuir.spec import FunctionSpecification


def normed_output() -> FunctionSpecification:
    """O = A / sqrt(mean over the head dim of A^2 + 1e-5) * W[h] with A = softmax(scale * Q K^T) V, every query with every key; W has a weight for each column of each head.

    The norm of each head behind the attention: Ye et al. 2024, "Differential Transformer", section 2.1; Sun et al. 2023, "Retentive Network", equation 8.
    """

    def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, w: torch.Tensor, scale: float) -> dict[str, torch.Tensor]:
        group = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(group, 1) for x in (k, v))
        a = (q @ k.mT * scale).softmax(-1) @ v
        return {"O": a * (a.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * w[:, None]}

    return FunctionSpecification("normed_output", reference, doc=normed_output.__doc__ or "", parameters="W: Global[T, H, D]")
