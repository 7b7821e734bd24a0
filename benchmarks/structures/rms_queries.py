"""Attention whose queries are normed inside of the kernel."""

from __future__ import annotations

import torch

from cuir.spec import FunctionSpecification


def rms_queries() -> FunctionSpecification:
    """O = softmax(scale * Q' K^T) V, Q' = Q / sqrt(mean over the head dim of Q^2 + 1e-6), every query with every key.

    The norm of queries without its weights (Henry et al. 2020, "Query-Key Normalization for Transformers", as root mean square). LSE is that of the softmax.
    """

    def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> dict[str, torch.Tensor]:
        group = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(group, 1) for x in (k, v))
        s = q * (q.square().mean(-1, keepdim=True) + 1e-6).rsqrt() @ k.mT * scale
        return {"O": s.softmax(-1) @ v, "LSE": s.logsumexp(-1)}

    return FunctionSpecification("rms_queries", reference, doc=rms_queries.__doc__ or "", parameters="")
