"""Kernels with conditions in varied spellings, for the tests of coverage."""

from __future__ import annotations

import torch

import cuir
from cuir.checking.checked import Checked
from cuir.checking.checker import check

SCALED = """
@func
def far(x):
    return x // 512 > 0

@kernel(arch="sm_80")
def kernel(X: Global[f16, B, H, M, 32], Y: Global[f16, B, H, M, 32]{more}):
    work = tiles(B * H * cdiv(M, 16))
    with role("all", warps=1):
        n = 0
        for t in work:
            m = t % cdiv(M, 16)
            b = t // cdiv(M, 16) // H
            h = t // cdiv(M, 16) % H
            f = 2.0
            {body}
            q = m * 16 + rows(16)
            x = cast(X[b, h, q, cols(32)], f32)
            store(Y[b, h, q, cols(32)], cast(x * f, f16))
            n += 1
"""


def doubled(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


def text_of(body: str, more: str = "") -> str:
    """A kernel that doubles a tensor, with a line of its own for each unit of work, in which `f` is the factor."""
    return SCALED.format(body=body, more=more)


def check_body(body: str, more: str = "") -> Checked:
    return check(cuir.parse(text_of(body, more)), None, {})
