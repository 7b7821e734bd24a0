"""Matrix product with a bias and the sigmoid form of GELU."""

from __future__ import annotations

import torch

from cuir.spec import FunctionSpecification


def gelu_gemm() -> FunctionSpecification:
    """C = x / (1 + exp(-1.702 x)), x = A B + bias: A [M, K], B given as Bt [N, K], bias [N] -> C [M, N]. Hendrycks and Gimpel 2016, section 2."""

    def reference(a: torch.Tensor, bt: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        x = a @ bt.mT + bias
        return x * torch.sigmoid(1.702 * x)

    return FunctionSpecification("gelu_gemm", reference, doc=gelu_gemm.__doc__ or "")
