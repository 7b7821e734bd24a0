"""A worker whose lanes read what other lanes of it wrote, and write where others read: the GPU gives what the interpreter gives."""

from __future__ import annotations

import torch

import cuir
from cuir.checking.checker import check
from cuir.interp import run
from cuir.syntax.parser import parse

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


def agree() -> None:
    """Bit by bit, 20 times."""
    checked = check(parse(TEXT, "shifted.cuir"))
    x = torch.randn(1024, 64, generator=torch.Generator().manual_seed(0))
    given = {"X": x, "Y": torch.zeros_like(x), "Z": torch.zeros_like(x)}
    run(checked, given)
    kernel = cuir.compile(checked)
    for _ in range(20):
        y, z = torch.full_like(x, torch.nan).cuda(), torch.zeros_like(x).cuda()
        kernel(X=x.cuda(), Y=y, Z=z)
        assert torch.equal(y.cpu(), given["Y"]) and torch.equal(z.cpu(), given["Z"])
