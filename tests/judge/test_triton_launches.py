"""Triton kernels of a solution: types of arguments, and a whole judgement where Triton is installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from benchmarks.judged.cases import FOLDER
from cuir.judge.arena_tensors import DeviceArena
from cuir.judge.judging import SolutionJudge
from cuir.judge.references import Reference
from cuir.judge.triton_launches import describe_argument, is_divisible, serve_triton

SOLUTION = """
import torch
import triton
import triton.language as tl


@triton.jit
def add_kernel(a, b, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(a + i, i < n) + tl.load(b + i, i < n){mask})


def solution(a, b):
    out = torch.empty_like(a)
    add_kernel[(triton.cdiv(a.numel(), 256),)](a, b, out, a.numel(), BLOCK=256)
    return out
"""


def test_arguments_have_the_types_that_triton_names() -> None:
    dtypes = (torch.float16, torch.bfloat16, torch.float32, torch.int64, torch.uint8)
    assert [describe_argument(torch.empty(1, dtype=d)) for d in dtypes] == ["*fp16", "*bf16", "*fp32", "*i64", "*u8"]
    assert [describe_argument(x) for x in (True, 3, 1 << 40, 2.5)] == ["i1", "i32", "i64", "fp32"]
    assert [is_divisible(x) for x in (32, 33, True, 16.0, torch.empty(64)[1:])] == [True, False, False, False, False]


def test_nothing_is_done_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert not serve_triton(cast(DeviceArena, SimpleNamespace()), "sm_90a", lambda: 0)


@pytest.mark.nvcc
@pytest.mark.thorough
@pytest.mark.parametrize(("mask", "verdict"), [(", i < n", "right"), ("", "wrong")])
def test_a_kernel_in_triton_is_judged(tmp_path: Path, mask: str, verdict: str) -> None:
    pytest.importorskip("triton")
    path = tmp_path / "solution.py"
    path.write_text(SOLUTION.format(mask=mask), encoding="utf-8")
    made = SolutionJudge(Reference(FOLDER / "add.py"), path, None, "sm_90a", 1)
    made.stops_at_fault = True
    found = made.run()
    assert found.verdict == verdict, (found.faults, found.refused, found.reason)
