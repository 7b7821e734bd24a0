"""Squared rectified scores as weights, without a softmax."""

from __future__ import annotations

import torch

from cuir.spec import FunctionSpecification


def squared_relu() -> FunctionSpecification:
    """O = (relu(scale * Q K^T)^2 / max(N, 1)) V, every query with every key.

    Hua et al. 2022, "Transformer Quality in Linear Time", section 3.2, without its offsets.
    """

    def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> dict[str, torch.Tensor]:
        group = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(group, 1) for x in (k, v))
        return {"O": torch.relu(q @ k.mT * scale).square() / max(k.shape[2], 1) @ v}

    return FunctionSpecification("squared_relu", reference, doc=squared_relu.__doc__ or "", parameters="")
