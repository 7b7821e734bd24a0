"""Runs in PyTorch's own process: here on the CPU where there is no GPU, which takes the same way."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cuir.judge.device_runs import DeviceRequest, find_cause, run_on_device

SOLUTION = """
import os
import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        if x.shape[0] == 3:
            raise ValueError("three rows")
        if x.shape[0] == 4:
            os._exit(9)
        return x * self.weight, x + 1
"""


def test_errors_are_of_one_problem_and_a_crash_ends_the_runs(tmp_path: Path) -> None:
    path = tmp_path / "solution.py"
    path.write_text(SOLUTION, encoding="utf-8")
    state = {"weight": torch.tensor([2.0, 3.0])}
    runs = run_on_device(path, [DeviceRequest([2], state, [[torch.ones(rows, 2)]]) for rows in (1, 3, 2, 4, 1)], 60.0)
    first, refused, second, lost = runs
    assert [x.tolist() for x in first.calls[0][1]] == [[[2.0, 3.0]], [[2.0, 2.0]]] and not first.error
    assert refused.error == "ValueError: three rows" and not refused.is_lost
    assert second.calls and not second.error
    assert lost.is_lost and "exit code 9" in lost.error


def test_a_solution_that_does_not_load_says_why(tmp_path: Path) -> None:
    path = tmp_path / "solution.py"
    path.write_text("def helper(x):\n    return x\n", encoding="utf-8")
    with pytest.raises(RuntimeError, match="it has none of ModelNew"):
        run_on_device(path, [], 60.0)


@pytest.mark.parametrize(
    ("output", "cause"),
    [
        (
            '[1/3] nvcc ...\ns.cu(7): error: no operator "+"\n1 error detected\nninja: build stopped: failed.',
            's.cu(7): error: no operator "+"',
        ),
        ("main.cpp:3:10: fatal error: x.h: No such file\nRuntimeError: Error building", "main.cpp:3:10: fatal error: x.h: No such file"),
        ("Traceback\nLookupError: no error here\n\n", "LookupError: no error here"),
        ("", ""),
    ],
)
def test_the_cause_of_a_failed_build_is_what_the_compiler_says(output: str, cause: str) -> None:
    assert find_cause(output) == cause
