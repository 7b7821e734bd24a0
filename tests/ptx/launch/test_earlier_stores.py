"""A launch that begins before the end of the one before: what it may not see yet, and what makes it see that."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cuir.cuda import KernelCall, load
from cuir.verification.cuda_runs import CudaCheck

FAULTS = Path(__file__).parent.parent / "faults"
pytestmark = pytest.mark.nvcc


def run_sums(listed: torch.Tensor | None, overlaps: bool) -> tuple[set[str], bool]:
    """Codes of findings, and whether the result is right."""
    module = load(FAULTS / "flash_attention_2756.cu", arch="sm_90a")
    x, sums, y = torch.ones(2, 64, 32), torch.zeros(2, 64), torch.zeros(2, 64)

    def launch() -> list[KernelCall]:
        first = KernelCall(2, 64, x, sums, kernel="flash_attention_2756_sums")
        return [first, KernelCall(2, 64, x, sums, listed, y, kernel="flash_attention_2756_subtract", overlaps=overlaps)]

    findings = CudaCheck(module, launch).run(["together"]).findings
    return {d.code for d in findings}, bool((y == -31).all())


def test_stores_race_until_the_wait_for_the_launch_before() -> None:
    listed = torch.tensor([1, 0], dtype=torch.int32)
    assert run_sums(listed, overlaps=True) == ({"R402"}, True)
    assert run_sums(None, overlaps=True) == (set(), True)  # this way waits


def test_a_launch_that_does_not_overlap_waits_by_itself() -> None:
    assert run_sums(torch.tensor([1, 0], dtype=torch.int32), overlaps=False) == (set(), True)


def test_what_the_launch_before_did_not_store_needs_no_wait() -> None:
    """The first launch reads x, and so does the second, before its wait."""
    codes, _ = run_sums(None, overlaps=True)
    assert not codes
