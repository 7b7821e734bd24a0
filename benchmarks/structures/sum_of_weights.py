"""Two kinds of weights of the same scores, added."""

from __future__ import annotations

import torch

from cuir.spec import FunctionSpecification


def sum_of_weights() -> FunctionSpecification:
    """O = (softmax(S) + lam * sigmoid(S)) V with S = scale * Q K^T, every query with every key; lam is a number."""

    def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, lam: float) -> dict[str, torch.Tensor]:
        group = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(group, 1) for x in (k, v))
        s = q @ k.mT * scale
        return {"O": (s.softmax(-1) + lam * torch.sigmoid(s)) @ v}

    return FunctionSpecification("sum_of_weights", reference, doc=sum_of_weights.__doc__ or "", parameters="lam: f32")
