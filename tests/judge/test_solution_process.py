"""The judge's side of a solution's process: a crash is told, and a launch that takes too long is not judged."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cuir.judge.solution_process import NotJudged, SolutionLost, SolutionProcess, limit_seconds
from cuir.verification.cuda_runs import RunLedger

SOLUTION = """
import os
import torch


def solution(x):
    if x.numel() == 2:
        return x.cpu(), torch.zeros(2)
    os.abort()
"""


def test_seconds_of_a_block_are_limited() -> None:
    with pytest.raises(NotJudged, match="more than"), limit_seconds(0.05):
        while True:
            pass


@pytest.mark.nvcc
def test_tensors_of_the_host_are_told_and_a_crash_names_its_signal(tmp_path: Path) -> None:
    path = tmp_path / "solution.py"
    path.write_text(SOLUTION, encoding="utf-8")
    process = SolutionProcess(path, None, "sm_90a", RunLedger("{}"), 60.0)
    try:
        process.load([], {})
        assert process.call([torch.ones(2)]).kinds == ["a tensor in the host's memory"] * 2
        with pytest.raises(SolutionLost, match="SIGABRT"):
            process.call([torch.ones(3)])
    finally:
        process.close()
