"""Verification of kernels of packed sequences: faults at ends of sequences are refused, rows of none are free."""

from __future__ import annotations

import pytest
import torch

import corpus
import cuir
from cuir.attn.verification.serving_specifications import _draw_places

TEXT = corpus.kernels()["flash_fwd_varlen_sm90"].read_text(encoding="utf-8")
CONSTS = {"T": cuir.f16, "D": 64, "BM": 64, "BN": 64}


@pytest.mark.thorough
@pytest.mark.usefixtures("no_schedules")
def test_rows_of_other_sequences_that_count_are_found() -> None:
    right = "cleared(sV[s], left)\n"
    assert TEXT.count(right) == 1
    wrong, spec = cuir.parse(TEXT.replace(right, "fence_async()\n")), corpus.specification("causal_packed")()
    report = cuir.verify(wrong, spec, consts=CONSTS, seeded=0, shrink=False)
    assert not report.ok and report.diagnostics[0].code == "V302" and "does not read" in report.diagnostics[0].message


def test_places_are_of_sequences_in_their_order() -> None:
    gaps = empty = 0
    for seed in range(40):
        start, end = _draw_places(3, 20, torch.Generator().manual_seed(seed))
        assert bool((start <= end).all()) and bool((end[:-1] <= start[1:]).all()) and int(start[0]) >= 0 and int(end[-1]) <= 20
        assert int((end - start).sum()) > 0
        gaps, empty = gaps + int((end - start).sum() < 20), empty + int((end == start).any())
    assert gaps and empty
