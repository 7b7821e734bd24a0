"""What ptxas would say of a kernel, asked early: tiles that do not fit the registers are told by verify, as a warning."""

from __future__ import annotations

import shutil

import pytest
import torch

from cuir.checking.checker import check
from cuir.runtime.launchable import require_launchable, spills
from cuir.syntax.parser import parse
from cuir.verification import verify

WIDE = """\
@kernel(arch="sm_90a")
def spread(X: Global[f32, M, 96], Z: Global[f32, M, 96], Y: Global[f32, M, 96]):
    work = tiles(cdiv(M, ROWS))
    with role("all", warpgroups=GROUPS) as g:
        for t in work:
            r = t * ROWS + g * 64
            x = X[r + rows(64), cols(96)]
            z = Z[r + rows(64), cols(96)]
            top = row_max(x * z)
            store(Y[r + rows(64), cols(96)], (x - top) * (z - top))
"""


def spread(X: torch.Tensor, Z: torch.Tensor) -> torch.Tensor:
    top = (X * Z).amax(-1, keepdim=True)
    return (X - top) * (Z - top)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize(("groups", "fits"), [(1, True), (8, False)])
def test_tiles_that_do_not_fit_the_registers(groups: int, fits: bool) -> None:
    text = WIDE.replace("ROWS", str(groups * 64)).replace("GROUPS", str(groups))
    said = spills(require_launchable(check(parse(text))), compile=True)
    assert (said == "") == fits, said
    if not fits:
        assert "tiles do not fit the registers" in said and "with 64 registers a thread" in said
        report = verify(parse(text), spread)  # known from the compilation before
        assert report.ok and report.spills == said and said in report.left_open
