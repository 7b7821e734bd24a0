"""Y = alpha A B + beta C: A [M, K], B given as its columns Bt [N, K], C and Y [M, N]. What the ping-pong GEMM computes (its D is Y here)."""

import torch


def reference(a: torch.Tensor, bt: torch.Tensor, c: torch.Tensor, alpha: float, beta: float) -> dict[str, torch.Tensor]:
    return {"Y": alpha * (a @ bt.mT) + beta * c}
