"""Differential attention: the difference of two softmaxes weighs the values."""

from __future__ import annotations

import torch

from cuir.spec import FunctionSpecification


def differential_attention() -> FunctionSpecification:
    """O = (softmax(scale * Q K^T) - lam * softmax(scale * Q2 K2^T)) V, every query with every key; Q2 is of the shape of Q, K2 of K; lam is a number.

    Ye et al. 2024, "Differential Transformer", equation 1, without the norm of each head that follows it there. Two softmaxes, each with its own maximum and sum, so LSE is not asked for: a kernel may leave it out.
    """

    def reference(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, q2: torch.Tensor, k2: torch.Tensor, scale: float, lam: float
    ) -> dict[str, torch.Tensor]:
        group = q.shape[1] // k.shape[1]
        k, v, k2 = (x.repeat_interleave(group, 1) for x in (k, v, k2))
        first, second = ((a @ b.mT * scale).softmax(-1) for a, b in ((q, k), (q2, k2)))
        return {"O": (first - lam * second) @ v}

    return FunctionSpecification("differential_attention", reference, doc=differential_attention.__doc__ or "",
                                 parameters="Q2: Global[T, B, H, M, D], K2: Global[T, B, HK, N, D], lam: f32")  # fmt: skip
