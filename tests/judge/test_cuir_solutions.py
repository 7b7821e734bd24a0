"""Programs in CuIR as solutions: consts from the inputs, outputs made for them, tensor maps, and kernels that are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cuir.judge.solution_process import NotJudged, SolutionProcess
from cuir.verification.cuda_runs import RunLedger

pytestmark = pytest.mark.nvcc
SCALE = """
@kernel(arch="sm_90a")
def scale(X: Global[f32, M, D], Y: Global[f32, M, D], *, D: const):
    work = tiles(cdiv(M, 16))
    with role("all", warps=1):
        for t in work:
            store(Y[t * 16 : t * 16 + 16, :], load(X[t * 16 : t * 16 + 16, :]) * 2.0)
"""
COPIED = """
@kernel(arch="sm_90a")
def doubled(X: Global[f16, M, D], Y: Global[f16, M, D], *, D: const):
    x, full = shared(f16, [16, D]), mbarrier(1)
    work = tiles(cdiv(M, 16))
    with role("all", warps=1):
        i = 0
        for t in work:
            full.expect(nbytes(x))
            copy_async(X[t * 16 : t * 16 + 16, :], x, full)
            full.wait(i % 2)
            store(Y[t * 16 : t * 16 + 16, :], load(x) * 2.0)
            sync()
            i += 1
"""


def run(text: str, folder: Path, x: torch.Tensor) -> torch.Tensor:
    path = folder / "solution.cuir"
    path.write_text(text, encoding="utf-8")
    process = SolutionProcess(path, None, "sm_90a", RunLedger("{}"), 60.0)
    try:
        process.load([], {})
        record = process.call([x])
    finally:
        process.close()
    assert not record.error and not record.findings and record.launches == 1, (record.error, record.findings)
    assert not record.undefined[0].any()
    return record.outputs[0]


@pytest.mark.sweep
@pytest.mark.parametrize(("text", "dtype"), [(SCALE, torch.float32), (COPIED, torch.float16)], ids=["loads", "tensor maps"])
def test_a_program_runs_on_the_inputs(tmp_path: Path, text: str, dtype: torch.dtype) -> None:
    x = torch.randn(37, 64).to(dtype)
    assert torch.equal(run(text, tmp_path, x), x * 2)


@pytest.mark.thorough("a process for one message")
def test_a_program_of_two_kernels_is_not_judged(tmp_path: Path) -> None:
    path = tmp_path / "solution.cuir"
    path.write_text(SCALE + SCALE.replace("def scale", "def again"), encoding="utf-8")
    process = SolutionProcess(path, None, "sm_90a", RunLedger("{}"), 60.0)
    try:
        with pytest.raises(NotJudged, match="scale, again"):
            process.load([], {})
    finally:
        process.close()
