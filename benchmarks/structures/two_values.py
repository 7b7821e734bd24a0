"""One softmax that weighs two tensors of values."""

from __future__ import annotations

import torch

from cuir.spec import FunctionSpecification


def two_values() -> FunctionSpecification:
    """O = P V and O2 = P V2 with P = softmax(scale * Q K^T), every query with every key; V2 is of the shape of V, O2 of O. P is worked out once."""

    def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, v2: torch.Tensor, scale: float) -> dict[str, torch.Tensor]:
        group = q.shape[1] // k.shape[1]
        k, v, v2 = (x.repeat_interleave(group, 1) for x in (k, v, v2))
        p = (q @ k.mT * scale).softmax(-1)
        return {"O": p @ v, "O2": p @ v2}

    return FunctionSpecification(
        "two_values", reference, doc=two_values.__doc__ or "", parameters="V2: Global[T, B, HK, N, D], O2: Global[T, B, H, M, D]"
    )
