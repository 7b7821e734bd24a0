"""Calls on kernels of other architectures than the GPU's own, one function each; `test_card_kernels.py` runs each in a process."""

from __future__ import annotations

import torch

from cuir.attn.kernels.card_kernels import KERNELS, choose_target
from tests.gpu.flex_cases import alibi, causal, check, documents, tensors


def forward(arch: str, dim: int, dim_v: int, dtype: str) -> None:
    """Masks and scores, by the kernels that CUIR_ARCH names."""
    assert choose_target(torch.device("cuda", 0)).arch == arch and "forward" in KERNELS[arch]
    element = getattr(torch, dtype)

    def make(heads: int, key_heads: int, m: int, n: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        q, k, v = tensors(heads, key_heads, m, n, dim, element)
        return q, k, v[..., :dim_v].contiguous()

    for score, mask in (
        (None, None),
        (None, causal),
        (alibi(4), causal),
        (None, documents(0, 1000)),
        (None, lambda b, h, q, k: q >= k + 30),
    ):
        check(*make(4, 4, 700, 1000), score, mask)
    check(*make(8, 2, 300, 300), None, causal, enable_gqa=True, scale=0.2)
