"""Row sums for the backward pass of attention: each query's output times the output's gradient."""

from __future__ import annotations

import torch

from cuir.spec import FunctionSpecification


def attention_delta() -> FunctionSpecification:
    """DL = row_sum(O * dO): O and dO [B, H, M, D] -> DL f32 [B, H, M]. Dao et al. 2022, appendix B."""

    def reference(o: torch.Tensor, do: torch.Tensor) -> torch.Tensor:
        return (o * do).sum(-1)

    return FunctionSpecification("attention_delta", reference, doc=attention_delta.__doc__ or "")
