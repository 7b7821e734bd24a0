"""One softmax over the keys of two sequences."""

from __future__ import annotations

import torch

from cuir.spec import FunctionSpecification


def joint_attention() -> FunctionSpecification:
    """O = softmax(scale * [Q K^T, Q K2^T]) [V; V2]: every query with every key of both; K2 and V2 have a length of their own. LSE is that of the one softmax.

    Esser et al. 2024, "Scaling Rectified Flow Transformers", section 4 (text and image attend to both), with the sequences where they lie.
    """

    def reference(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, k2: torch.Tensor, v2: torch.Tensor, scale: float
    ) -> dict[str, torch.Tensor]:
        group = q.shape[1] // k.shape[1]
        k, v, k2, v2 = (x.repeat_interleave(group, 1) for x in (k, v, k2, v2))
        s = q @ torch.cat((k, k2), 2).mT * scale
        return {"O": s.softmax(-1) @ torch.cat((v, v2), 2), "LSE": s.logsumexp(-1)}

    return FunctionSpecification(
        "joint_attention", reference, doc=joint_attention.__doc__ or "", parameters="K2: Global[T, B, HK, L, D], V2: Global[T, B, HK, L, D]"
    )
