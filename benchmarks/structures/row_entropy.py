"""Attention that also gives the entropy of each query's weights."""

from __future__ import annotations

import torch

from cuir.spec import FunctionSpecification


def row_entropy() -> FunctionSpecification:
    """O = P V and ENT = -(sum over the keys of P log P), in natural logarithms, with P = softmax(scale * Q K^T), every query with every key. LSE is that of the softmax.

    Used to watch attention collapse: Zhai et al. 2023, "Stabilizing Transformer Training by Preventing Attention Entropy Collapse", section 3.
    """

    def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> dict[str, torch.Tensor]:
        group = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(group, 1) for x in (k, v))
        s = q @ k.mT * scale
        p, lse = s.softmax(-1), s.logsumexp(-1)
        return {"O": p @ v, "LSE": lse, "ENT": lse - (p * s).sum(-1)}

    return FunctionSpecification("row_entropy", reference, doc=row_entropy.__doc__ or "", parameters="ENT: Global[f32, B, H, M]")
