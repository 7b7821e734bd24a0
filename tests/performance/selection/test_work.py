"""Work of a program for a pair, and visited blocks: counted from the mask itself, pair by pair."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import corpus
from cuir import parse
from cuir.performance.selection.work import Work
from cuir.spec.specification import Lengths
from tests.performance.selection.conftest import adapt, work

CLOSED = ["causal", "sliding_window", "prefix_lm", "local", "qk_sparse", "global_sliding_window", "sliding_window_global", "combo"]


def visits_of_mask(variant: str, at: Lengths, BM: int, BN: int) -> tuple[np.ndarray, np.ndarray]:
    """(blocks with a kept pair, those of them that are not whole) of each tile, from the specification's mask in PyTorch."""
    retained = adapt(variant).spec.mask(at)[0, 0]
    tiles, blocks = -(-at.M // BM), -(-at.N // BN)
    wide = torch.zeros(tiles * BM, blocks * BN, dtype=torch.bool)
    wide[: at.M, : at.N] = retained
    pairs = wide.view(tiles, BM, blocks, BN).sum((1, 3))
    rows = (at.M - BM * torch.arange(tiles)).clamp(0, BM)
    whole = (pairs == (rows * BN)[:, None]) & (pairs > 0)
    return ((pairs > 0).sum(1)).numpy(), ((pairs > 0) & ~whole).sum(1).numpy()


@pytest.mark.parametrize("variant", CLOSED)
@pytest.mark.parametrize(("M", "N", "BM", "BN"), [(1024, 1024, 128, 128), (700, 1000, 192, 80), (1300, 1300, 64, 64)])
def test_blocks_are_those_of_the_mask(variant: str, M: int, N: int, BM: int, BN: int) -> None:
    at, of = Lengths(1, 2, 2, M, N), work(variant)
    some, n = of.count_blocks(at, adapt(variant).numbers, {"BM": BM, "BN": BN})
    expected, partial = visits_of_mask(variant, at, BM, BN)
    assert of.blocks == "closed"
    # A closed form may visit a block too many at an edge, never one too few.
    assert (n[0] >= expected).all() and n[0].sum() <= expected.sum() + 2 * len(expected)
    assert (some[0] >= partial).all() and (some[0] <= n[0]).all()


def test_a_captured_number_says_how_many_blocks() -> None:
    at, of = Lengths(1, 8, 8, 8192, 8192), work("sliding_window")
    steps = [float(of.count_visits(at, {"window": w}, {"BM": 128, "BN": 128}).steps.mean()) for w in (128, 512, 2048, 16384)]
    assert steps == sorted(set(steps)) and "window" in of.dependencies
    causal = work("causal").count_visits(at, {}, {"BM": 128, "BN": 128})
    assert steps[-1] == pytest.approx(float(causal.steps.mean()))


def test_without_a_mask_all_blocks_are_computed_by_each_warpgroup() -> None:
    at, full = Lengths(2, 4, 4, 1024, 1000), work("full")
    result = full.count_visits(at, {}, {"BM": 128, "BN": 128})
    assert full.blocks == "all" and (result.steps == 2 * 8).all() and (result.skipped == 0).all()
    ragged = full.count_visits(Lengths(2, 4, 4, 1000, 1024), {}, {"BM": 192, "BN": 128}).steps
    assert ragged[-1] == 8 and ragged[0] == 3 * 8, "warpgroups behind the last query compute nothing"


def test_a_warpgroup_skips_what_only_others_need() -> None:
    at, causal = Lengths(1, 1, 1, 2048, 2048), work("causal")
    wide, turns = ({"BM": 192, "BN": 64, "PINGPONG": p} for p in (False, True))
    skipping, marching = causal.count_visits(at, {}, wide), causal.count_visits(at, {}, turns)
    assert (skipping.steps + skipping.skipped == marching.steps).all() and skipping.skipped.sum() > 0
    alone = visits_of_mask("causal", at, 64, 64)[0]
    assert (skipping.steps >= np.add.reduceat(alone, np.arange(0, len(alone), 3))).all()


@pytest.mark.parametrize(
    ("variant", "blocks"),
    [("document", "listed"), ("causal_document", "listed"), ("share_question", "listed"), ("alibi", "all"), ("causal", "closed")],
)
def test_how_blocks_are_known(variant: str, blocks: str) -> None:
    of = work(variant)
    assert of.blocks == blocks
    visits = of.count_visits(Lengths(1, 4, 4, 4096, 4096), {}, {"BM": 128, "BN": 128})
    assert ((visits.masked <= visits.steps) & (visits.steps <= 2 * 32)).all()


def test_arithmetic_is_that_of_the_mods() -> None:
    full, alibi, softcap, causal, window = (work(v) for v in ("full", "alibi", "softcap", "causal", "sliding_window"))
    assert full.score.plain == full.score.special == full.keep.plain == 0
    assert alibi.score.plain > 0 and alibi.score.special == 0, "exp2 of the head is computed once"
    assert softcap.score.special == 1 and softcap.score.plain > 0
    assert 0 < causal.keep.plain < window.keep.plain


def test_other_kernels_have_no_such_work() -> None:
    gemm = parse(corpus.programs()["gemm"].read_text(encoding="utf-8"))
    assert Work.of(gemm) is None
