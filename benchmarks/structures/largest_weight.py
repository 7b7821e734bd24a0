"""Attention that also gives the largest weight of each query."""

from __future__ import annotations

import torch

from cuir.spec import FunctionSpecification


def largest_weight() -> FunctionSpecification:
    """O = P V and TOP = the largest of P for each query, with P = softmax(scale * Q K^T), every query with every key; TOP of a query without keys is 0. LSE is that of the softmax."""

    def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> dict[str, torch.Tensor]:
        group = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(group, 1) for x in (k, v))
        s = q @ k.mT * scale
        p = s.softmax(-1)
        top = p.amax(-1) if p.shape[-1] else torch.zeros(p.shape[:-1], dtype=p.dtype)
        return {"O": p @ v, "LSE": s.logsumexp(-1), "TOP": top}

    return FunctionSpecification("largest_weight", reference, doc=largest_weight.__doc__ or "", parameters="TOP: Global[f32, B, H, M]")
