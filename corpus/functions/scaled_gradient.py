"""The end of attention's backward pass: dQ as it was added up, scaled, in its dtype."""

from __future__ import annotations

import torch

from cuir.spec import FunctionSpecification
from cuir.spec.gradients import count_sums, gather_sums


def scaled_gradient() -> FunctionSpecification:
    """GQ = dQ * scale, for dQ f32 [B, H, M, D], or [B, H, MD] in blocks as warps add it up."""

    def reference(dq: torch.Tensor, scale: float, M: int, D: int) -> torch.Tensor:
        return (gather_sums(dq, M, D) if dq.dim() == 3 else dq) * scale

    def sizes(drawn: dict[str, int]) -> dict[str, int]:
        return {"MD": count_sums(drawn["M"], drawn["D"])} if "MD" in drawn else {}

    return FunctionSpecification("scaled_gradient", reference, sizes=sizes, doc=scaled_gradient.__doc__ or "")
