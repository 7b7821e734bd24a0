"""Causal attention whose output is gated, element by element."""

from __future__ import annotations

import torch

from cuir.spec import FunctionSpecification


def gated_attention() -> FunctionSpecification:
    """O = sigmoid(G) * (softmax(scale * Q K^T) V) where k <= q + (N - M), G of the shape of Q; a query without keys has O = 0. LSE is that of the softmax.

    Qiu et al. 2025, "Gated Attention for Large Language Models", section 2.2, the gate behind the attention (G1), given as a tensor.
    """

    def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, scale: float) -> dict[str, torch.Tensor]:
        group, M, N = q.shape[1] // k.shape[1], q.shape[2], k.shape[2]
        keep = torch.arange(N) <= torch.arange(M)[:, None] + (N - M)
        s = (q @ k.repeat_interleave(group, 1).mT * scale).masked_fill(~keep, -torch.inf)
        p = s.softmax(-1).masked_fill(~keep.any(-1, keepdim=True), 0.0)
        return {"O": torch.sigmoid(g) * (p @ v.repeat_interleave(group, 1)), "LSE": s.logsumexp(-1)}

    return FunctionSpecification("gated_attention", reference, doc=gated_attention.__doc__ or "", parameters="G: Global[T, B, H, M, D]")
