"""Tensors of the device in a solution's process: where they lie, and what of them has been written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cuir.judge.solution_process import SolutionProcess
from cuir.verification.cuda_runs import RunLedger

pytestmark = pytest.mark.nvcc
SOLUTION = """
import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x):
        facts = [x.is_cuda, str(x.device), torch.empty(3).is_cuda, self.weight.is_cuda, (x * 2).is_cuda, x.cpu().is_cuda]
        facts += [torch.empty(2, device="cuda").isnan().all().item(), torch.zeros(2, device=x.device).to("cuda").is_cuda]
        assert facts == [True, "cuda:0", False, True, True, False, True, True], facts
        fresh = torch.empty(4, device="cuda")
        fresh[:2] = x[:2]
        return fresh, x[1:3] + 1
"""


def test_tensors_lie_where_pytorch_says_and_unwritten_elements_are_known(tmp_path: Path) -> None:
    path = tmp_path / "solution.py"
    path.write_text(SOLUTION, encoding="utf-8")
    process = SolutionProcess(path, None, "sm_90a", RunLedger("{}"), 60.0)
    try:
        assert process.load([], {"weight": torch.ones(4)})
        record = process.call([torch.arange(4.0)])
    finally:
        process.close()
    assert not record.error, record.error
    assert record.undefined[0].tolist() == [False, False, True, True] and not record.undefined[1].any()
    assert record.outputs[1].tolist() == [2.0, 3.0] and record.kinds == ["tensor", "tensor"]
    assert "mul" in record.recorded and record.launches == 0 and not record.changed
