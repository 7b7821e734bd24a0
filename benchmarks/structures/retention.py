"""Retention: scores that fade with the distance are the weights, without a softmax."""

from __future__ import annotations

import torch

from cuir.spec import FunctionSpecification


def retention() -> FunctionSpecification:
    """O = (scale * Q K^T * D) V with D = exp(-|A[h]| * (i - k)) where k <= i, else 0, and i = q + (N - M); A has a number for each head. A query without keys has O = 0.

    Sun et al. 2023, "Retentive Network", equation 5, the parallel form, without the rotation and the norm.
    """

    def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, a: torch.Tensor, scale: float) -> dict[str, torch.Tensor]:
        group = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(group, 1) for x in (k, v))
        far = torch.arange(q.shape[2])[:, None] + (k.shape[2] - q.shape[2]) - torch.arange(k.shape[2])
        fade = torch.where(far >= 0, torch.exp(-a.abs()[:, None, None] * far.clamp(min=0)), 0.0)
        return {"O": (q @ k.mT * scale * fade) @ v}

    return FunctionSpecification("retention", reference, doc=retention.__doc__ or "", parameters="A: Global[f32, H]")
