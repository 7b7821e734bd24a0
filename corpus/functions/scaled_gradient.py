"""The end of attention's backward pass: dQ as it was added up, scaled, in its dtype."""

from __future__ import annotations

import torch

from cuir.spec import FunctionSpecification


def scaled_gradient() -> FunctionSpecification:
    """GQ = dQ * scale, for dQ f32 [B, H, M, D]."""

    def reference(dq: torch.Tensor, scale: float) -> torch.Tensor:
        return dq * scale

    return FunctionSpecification("scaled_gradient", reference, doc=scaled_gradient.__doc__ or "")
