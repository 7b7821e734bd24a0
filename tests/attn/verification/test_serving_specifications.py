"""Verification of kernels of packed sequences: faults at ends of sequences are refused, rows of none are free."""

from __future__ import annotations

import pytest
import torch

import corpus
import cuir
from cuir.attn.splicing.splice import transfer
from cuir.attn.verification.serving_specifications import (
    _draw_places,
    make_cached_specification,
    make_selected_tokens_specification,
    sort_tokens,
)
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
    q, keys = torch.randn(1, 1, 11, 8), torch.randn(5, 1, 32, 8)
    lengths = [int(cached.inputs(sizes, torch.Generator().manual_seed(seed), q, keys)["LENGTHS"]) for seed in range(40)]  # type: ignore[misc]
    assert sum(n > 32 and 0 < n % 32 < 11 for n in lengths) >= 3 and 128 in lengths and max(lengths) == 128


CAUSAL = Specification("causal", lambda b, h, q, k, *, M, N: k <= q + (N - M))


def draw_queries(aligned: bool, *shape: int) -> torch.Tensor:
    g = torch.Generator().manual_seed(0)
    return torch.randn(shape[-1], generator=g) * 30 * aligned + torch.randn(shape, generator=g)


@pytest.mark.parametrize("scaled", [False, True])
def test_largest_scores_of_pages_grow_where_queries_are_alike(scaled: bool) -> None:
    cached = make_cached_specification(CAUSAL, scaled=scaled)
    sizes = {"B": 2, "HK": 2, "H": 4, "M": 3, "PAGE": 16, "MP": 6, "NP": 13, "BN": 16}
    g = torch.Generator().manual_seed(1)
    keys, q = torch.randn(13, 2, 16, 8, generator=g), draw_queries(True, 2, 4, 3, 8)
    scales = torch.rand(13, 2, 16, generator=g) if scaled else torch.ones(13, 2, 16)
    drawn = cached.inputs(sizes, g, q, keys, *([scales] if scaled else []))  # type: ignore[misc]
    assert drawn["LENGTHS"].tolist() == [96, 96] and drawn["PAGES"].unique().numel() == 12
    scores = torch.einsum("bd,bptd->bpt", q.mean((1, 2)), (keys * scales[..., None])[drawn["PAGES"], 0]).amax(-1)
    assert (scores[0].diff() < 0).all() and (scores[1].diff() > 0).all(), "from the last page on, and from the first"


def test_pages_are_in_any_order_where_queries_differ() -> None:
    cached, sizes = make_cached_specification(CAUSAL), {"B": 1, "HK": 1, "H": 4, "M": 3, "PAGE": 16, "MP": 6, "NP": 7, "BN": 16}
    q, keys = draw_queries(False, 1, 4, 3, 8), torch.randn(7, 1, 16, 8)
    drawn = [cached.inputs(sizes, torch.Generator().manual_seed(0), q, k)["PAGES"] for k in (keys, -keys)]  # type: ignore[misc]
    assert torch.equal(*drawn)


def test_lists_of_tokens_are_sorted_where_the_heads_of_a_query_are_alike() -> None:
    g = torch.Generator().manual_seed(1)
    keys, pages = torch.randn(13, 1, 16, 8, generator=g), torch.randperm(13, generator=g)[:12].view(2, 6)
    tokens = torch.randint(-2, 98, (2, 3, 50), generator=g).int()
    alike, other = draw_queries(True, 2, 5, 3, 8), draw_queries(False, 2, 5, 3, 8)
    q = torch.where(torch.arange(3)[:, None] < 2, alike, other)
    lists = sort_tokens(tokens, q, keys, pages)
    assert torch.equal(lists.sort(-1).values, tokens.sort(-1).values) and torch.equal(lists[:, 2], tokens[:, 2])
    for b, m in ((0, 0), (0, 1), (1, 0), (1, 1)):
        rows = keys[pages[b], 0].flatten(0, 1)[lists[b, m].clamp(0, 95).long()] @ q[b, :, m].mean(0)
        assert (rows.diff() * (-1) ** (b + m) > -1e-3).all()


def test_heads_fill_the_rows_of_a_warp_in_some_problem() -> None:
    for spec in (make_cached_specification(CAUSAL), make_selected_tokens_specification(CAUSAL)):
        drawn = [dict.fromkeys(("B", "HK", "M", "PAGE", "MP", "TOPK"), 2) | {"H": h, "CHUNK": 64} for h in range(1, 7)]
        assert {sizes["H"] // sizes["HK"] for sizes in map(spec.sizes, drawn)} == {1, 2, 3, 5, 16}  # type: ignore[arg-type, index, union-attr]


@pytest.mark.thorough
@pytest.mark.usefixtures("no_schedules")
@pytest.mark.parametrize(
    ("name", "function", "dims"),
    [
        ("mla_selected_sm90", "causal_selected_tokens", {"D": 192, "DV": 128}),
        ("mla_decode_sm90", "cached_latent_decode", {"D": 192, "DV": 128}),
        ("decode_cache_sm75", "cached_decode", {"D": 64}),
    ],
)
def test_a_warp_whose_rows_all_grow_is_rescaled(name: str, function: str, dims: dict[str, int]) -> None:
    text = corpus.kernels()[name].read_text(encoding="utf-8")
    wrong = cuir.parse(text.replace("warp_any(f != 1.0)", "warp_any(f == 1.0)"))
    assert wrong != cuir.parse(text)
    report = cuir.verify(wrong, corpus.specification(function)(), consts={"T": cuir.f16, **dims}, shrink=False)
    assert not report.ok and report.diagnostics[0].code == "V301"
