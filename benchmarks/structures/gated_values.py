"""Values that are gated, a number a key, behind the softmax."""

from __future__ import annotations

import torch

from cuir.spec import FunctionSpecification


def gated_values() -> FunctionSpecification:
    """O = P (sigmoid(G) V) with P = softmax(scale * Q K^T), every query with every key; G has a number for each key of each key head. The softmax knows nothing of the gate.

    Qiu et al. 2025, "Gated Attention for Large Language Models", section 2.2, the gate at the values (G2), one for a head. LSE is that of the softmax.
    """

    def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, scale: float) -> dict[str, torch.Tensor]:
        group = q.shape[1] // k.shape[1]
        k, v, g = (x.repeat_interleave(group, 1) for x in (k, v, g))
        s = q @ k.mT * scale
        return {"O": s.softmax(-1) @ (torch.sigmoid(g)[..., None] * v), "LSE": s.logsumexp(-1)}

    return FunctionSpecification("gated_values", reference, doc=gated_values.__doc__ or "", parameters="G: Global[T, B, HK, N]")
