"""Verification of kernels of packed sequences: faults at ends of sequences are refused, rows of none are free."""

from __future__ import annotations

import pytest
import torch

import corpus
import cuir
from cuir.attn.splicing.splice import transfer
from cuir.attn.verification.serving_specifications import _draw_places, make_cached_specification
from cuir.spec.specification import Specification

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


@pytest.mark.parametrize(
    ("name", "function", "old", "new", "code"),
    [
        # blocks behind the last token are visited, and read nothing
        ("decode_cache_sm80", "cached_decode", "max(0, min(cdiv(LENGTHS[b], BN), cdiv(", "max(0, max(cdiv(LENGTHS[b], BN), cdiv(", "V108"),
        ("decode_cache_sm75", "cached_decode", "LENGTHS[b] - M + 1) // BN)", "LENGTHS[b] - M + 2) // BN)", "V102"),
        pytest.param(
            "flash_fwd_varlen_sm80",
            "causal_packed",
            "(b, h, m)[1] - 1 - i",
            "(b, h, m)[1] - i",
            "V103",
            marks=pytest.mark.thorough("lengths of sequences are asked of the kernels above"),
        ),
    ],
)
def test_contracts_are_asked_with_the_lengths_of_sequences(name: str, function: str, old: str, new: str, code: str) -> None:
    text = corpus.kernels()[name].read_text(encoding="utf-8")
    assert text.count(old) == 1
    report = cuir.verify(
        cuir.parse(text.replace(old, new)), corpus.specification(function)(), consts={"T": cuir.f16, "D": 64}, shrink=False
    )
    assert report.stages[1].verdict == "failed" and report.diagnostics[0].code == code


@pytest.mark.sweep
@pytest.mark.usefixtures("few_problems", "no_schedules")
@pytest.mark.parametrize(("name", "asked"), [("causal", True), ("causal_document", False)])
def test_contracts_are_not_asked_of_what_is_captured(name: str, asked: bool) -> None:
    """The places of documents in a sequence are in a tensor, which the lengths of sequences do not say."""
    spec, consts = corpus.specification(name)(), {"T": cuir.f16, "D": 64, "BM": 4, "GROUP": 4, "BN": 16}
    made = transfer(cuir.parse(corpus.kernels()["decode_cache_sm80"].read_text(encoding="utf-8")), spec)
    cached = make_cached_specification(made.spec, lambda lengths: made.arguments(lengths, consts=consts))
    report = cuir.verify(made.program, cached, consts=consts, shrink=False, seeded=0)
    assert report.ok and ("pairs of" if asked else "not asked: the splice points read") in report.stages[1].reason


def test_places_are_of_sequences_in_their_order() -> None:
    gaps = empty = 0
    for seed in range(40):
        start, end = _draw_places(3, 20, torch.Generator().manual_seed(seed))
        assert bool((start <= end).all()) and bool((end[:-1] <= start[1:]).all()) and int(start[0]) >= 0 and int(end[-1]) <= 20
        assert int((end - start).sum()) > 0
        gaps, empty = gaps + int((end - start).sum() < 20), empty + int((end == start).any())
    assert gaps and empty


def test_blocks_end_between_the_queries_of_some_sequence() -> None:
    """Otherwise all queries of a sequence see as many blocks, and a kernel may take those of another query."""
    cached = make_cached_specification(Specification("causal", lambda b, h, q, k, *, M, N: k <= q + (N - M)))
    sizes = {"B": 1, "HK": 1, "H": 1, "M": 11, "PAGE": 32, "MP": 4, "NP": 5, "BN": 32}
    lengths = [int(cached.inputs(sizes, torch.Generator().manual_seed(seed))["LENGTHS"]) for seed in range(40)]  # type: ignore[misc]
    assert sum(n > 32 and 0 < n % 32 < 11 for n in lengths) >= 3 and 128 in lengths and max(lengths) == 128
