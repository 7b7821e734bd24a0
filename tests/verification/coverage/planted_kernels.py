"""Kernels of other kinds with a fault that needs one number: a column sum, a decoding, a product whose stages are released in groups."""

from __future__ import annotations

import torch

REDUCTION = """
@kernel(arch="sm_80")
def kernel(X: Global[f32, C, R, 32], Y: Global[f32, C, 32]):
    work = tiles(C)
    with role("all", warps=1):
        for t in work:
            total = zeros(f32, [1, 32])
            last = {last}
            for i in range(last):
                total = total + X[t, i + rows(1), cols(32)]
            store(Y[t + rows(1), cols(32)], total)
"""

DECODING = """
@kernel(arch="sm_80")
def kernel(Q: Global[f32, B, H, 32], K: Global[f32, B, HK, N, 32], O: Global[f32, B, H, 32]):
    work = tiles(B * H)
    with role("all", warps=1):
        for t in work:
            b, h = t // H, t % H
            group = H // HK
            hk = h // group
            total = zeros(f32, [1, 32])
            for i in range(N):
                total = total + K[{b}, {hk}, i + rows(1), cols(32)]
            store(O[b, h + rows(1), cols(32)], total * Q[b, h + rows(1), cols(32)])
"""


def column_sum(x: torch.Tensor) -> torch.Tensor:
    return x.sum(1)


def decode(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return k.sum(2).repeat_interleave(q.shape[1] // k.shape[1], 1) * q


def decode_sizes(drawn: dict[str, int]) -> dict[str, int]:
    """Query heads in whole groups."""
    return {"H": -(-drawn["H"] // drawn["HK"]) * drawn["HK"]}
