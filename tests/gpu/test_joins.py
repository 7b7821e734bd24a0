"""Lanes of one worker that depend on each other through memory."""

from __future__ import annotations

import pytest
import torch

import cuir
from cuir.checking.checker import check
from cuir.interp import run
from cuir.syntax.parser import parse
from tests.gpu.isolation import run_isolated

TEXT = """
@kernel(arch="sm_90a")
def shifted(X: Global[f32, M, 64], Y: Global[f32, M, 64], Z: Global[f32, M, 64]):
    buf = shared(f32, [128, 64])
    work = tiles(cdiv(M, 128))
    with role("all", warpgroups=1):
        for t in work:
            for u in range(8):
                store(buf[0 : 64], load(X[t * 128 : t * 128 + 64, :]))
                store(buf[64 : 128], load(X[t * 128 + 64 : t * 128 + 64 + 64, :]))
                x = load(buf[40 : 40 + 64]) + buf[3, 5]
                store(buf[24 : 24 + 64], x)
                y = load(buf[8 : 8 + 64])
                store(Y[t * 128 : t * 128 + 64, :], y)
                store(Z[t * 128 + 32 : t * 128 + 32 + 64, :], y)
                z = load(Z[t * 128 + 40 : t * 128 + 40 + 64, :])
                store(Y[t * 128 + 64 : t * 128 + 64 + 64, :], z)
"""

ROWS = """
@kernel(arch="sm_90a")
def chained(X: Global[f16, M, 64], G: Global[f16, 64, 64], Y: Global[f32, M, 64], n: i32):
    h, g = shared(f16, [128, 64]), shared(f16, [64, 64])
    full = mbarrier(1)
    work = tiles(cdiv(M, 128))
    with role("load", warps=1):
        full.expect(nbytes(g))
        copy_async(G[0:64, :], g, full)
    with role("all", warpgroups=2) as w:
        full.wait(0)
        for t in work:
            mine = h[w * 64 : w * 64 + 64]
            x = cast(load(X[t * 128 + w * 64 : t * 128 + w * 64 + 64, :]), f32)
            for i in range(n):
                store(mine, cast(x, f16))
                fence_async()
                p = mma_async(mine, g)
                mma_wait(p)
                x = p + 1.0
            store(Y[t * 128 + w * 64 : t * 128 + w * 64 + 64, :], x)
"""


def rows() -> None:
    """Rows of shared memory that each warp writes and the tensor core reads for it: bit by bit, 20 times. G moves columns, so that all numbers are whole and small."""
    checked = check(parse(ROWS, "chained.cuir"))
    x = torch.randint(-9, 10, (4096, 64), generator=torch.Generator().manual_seed(0)).half()
    inputs = {"X": x, "G": torch.eye(64, dtype=torch.float16).roll(3, 1), "Y": torch.zeros(4096, 64), "n": 50}
    run(checked, inputs)
    kernel = cuir.compile(checked)
    for _ in range(20):
        y = kernel(X=x.cuda(), G=inputs["G"].cuda(), n=50)
        assert torch.equal(y.cpu(), inputs["Y"])


def agree() -> None:
    """Bit by bit, 20 times."""
    checked = check(parse(TEXT, "shifted.cuir"))
    x = torch.randn(1024, 64, generator=torch.Generator().manual_seed(0))
    inputs = {"X": x, "Y": torch.zeros_like(x), "Z": torch.zeros_like(x)}
    run(checked, inputs)
    kernel = cuir.compile(checked)
    for _ in range(20):
        y, z = torch.full_like(x, torch.nan).cuda(), torch.zeros_like(x).cuda()
        kernel(X=x.cuda(), Y=y, Z=z)
        assert torch.equal(y.cpu(), inputs["Y"]) and torch.equal(z.cpu(), inputs["Z"])


@pytest.mark.gpu
def test_the_gpu_does_what_the_interpreter_does() -> None:
    run_isolated(agree, seconds=120)


@pytest.mark.gpu
def test_rows_of_warps() -> None:
    run_isolated(rows, seconds=120)
