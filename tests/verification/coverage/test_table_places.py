"""A side that asks for a long table gets places for its entries: segments beyond the last that a fault reads have rows."""

from __future__ import annotations

import pytest
import torch

import cuir

SEGMENTS = """\
@kernel(arch="sm_90a")
def segments(X: Global[f32, L, 8], OFF: Global[i32, S1], Y: Global[f32, S, 8]):
    work = tiles(S)
    with role("all", warps=1):
        for t in work:
            lo, hi = OFF[t], OFF[END]
            total = zeros(f32, [1, 8])
            for j in range(cdiv(hi - lo, 16)):
                l = lo + j * 16 + rows(16)
                total = total + col_sum(X[where(l < hi, l, -1), cols(8)])
            store(Y[t, cols(8)], total)
"""


def segments(x: torch.Tensor, off: torch.Tensor) -> torch.Tensor:
    return torch.stack([x[lo:hi].sum(0) for lo, hi in zip(off.tolist()[:-1], off.tolist()[1:], strict=True)])


def offsets(sizes: dict[str, int], generator: torch.Generator) -> dict[str, torch.Tensor]:
    return {"OFF": torch.randint(sizes["L"] + 1, (sizes["S1"],), generator=generator).sort().values.int()}


@pytest.mark.parametrize(("end", "codes"), [("min(t + 1, 256)", ["V301"]), ("min(t + 1, S)", [])])
def test_segments_beyond_a_fixed_table(end: str, codes: list[str]) -> None:
    spec = cuir.FunctionSpecification("segments", segments, offsets, lambda drawn: {"S": max(1, drawn["S"]), "S1": max(1, drawn["S"]) + 1})
    report = cuir.verify(cuir.parse(SEGMENTS.replace("END", end)), spec, seeded=0, shrink=False)
    assert [d.code for d in report.diagnostics] == codes
