"""Small kernels of the tests of cuir.testing."""

from __future__ import annotations

import cuir

TEXT = """
@kernel(arch="sm_90a")
def scale(X: Global[f16, M, 64], Y: Global[f16, M, 64], factor: f32):
    work = tiles(cdiv(M, 64))
    with role("all", warpgroups=1):
        for t in work:
            i = t * 64 + rows(64)
            store(Y[i, cols(64)], cast(cast(X[i, cols(64)], f32) * factor, f16))
"""
SCALE = cuir.parse(TEXT)
SECOND_TILE_WRONG = cuir.parse(TEXT.replace("* factor", "* (factor + 0.1 if t == 1 else factor)"))
