"""Scores that a second product of queries and keys gates."""

from __future__ import annotations

import torch

from cuir.spec import FunctionSpecification


def gated_scores() -> FunctionSpecification:
    """O = softmax(scale * Q K^T * sigmoid(scale * Q2 K2^T)) V, every query with every key; Q2 is of the shape of Q, K2 of K. LSE is that of the softmax."""

    def reference(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, q2: torch.Tensor, k2: torch.Tensor, scale: float
    ) -> dict[str, torch.Tensor]:
        group = q.shape[1] // k.shape[1]
        k, v, k2 = (x.repeat_interleave(group, 1) for x in (k, v, k2))
        s = q @ k.mT * scale * torch.sigmoid(q2 @ k2.mT * scale)
        return {"O": s.softmax(-1) @ v, "LSE": s.logsumexp(-1)}

    return FunctionSpecification(
        "gated_scores", reference, doc=gated_scores.__doc__ or "", parameters="Q2: Global[T, B, H, M, D], K2: Global[T, B, HK, N, D]"
    )
