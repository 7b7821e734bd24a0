"""Programs and options that tests of several commands use."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

GOOD = """\
@kernel(arch="sm_90a")
def copy(X: Global[T, M, 64], Y: Global[T, M, 64], *, T: const):
    work = tiles(cdiv(M, 64))
    with role("all", warpgroups=1):
        for t in work:
            store(Y[t * 64 : t * 64 + 64, :], load(X[t * 64 : t * 64 + 64, :]))
"""
TWICE = """\
@kernel(arch="sm_80")
def twice(X: Global[T, M, 64], Y: Global[T, M, 64], *, T: const, BM: const = 32):
    sX = shared(T, [BM, 64])
    work = tiles(cdiv(M, BM))
    with role("all", warps=1):
        for t in work:
            copy_async(X[t * BM : t * BM + BM, :], sX)
            copy_commit()
            copy_wait(0)
            x = load(sX)
            store(Y[t * BM : t * BM + BM, :], x + x)
"""  # cp.async
TWICE_SPEC = "def reference(x):\n    return {'Y': x + x}\n"
KERNEL = (files("corpus") / "kernels" / "flash_fwd_sm90.cuir").read_text(encoding="utf-8")
SMALL = ("-c", "BM=64,BN=64", "--head-dim", "64")
needs_nvcc = pytest.mark.nvcc


def write_changed(path: Path, old: str, new: str) -> Path:
    assert KERNEL.count(old) >= 1
    path.write_text(KERNEL.replace(old, new, 1), encoding="utf-8")
    return path
