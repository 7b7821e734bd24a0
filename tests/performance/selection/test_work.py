"""Work of a program for a pair, and visited blocks: counted from the mask itself, pair by pair.

Masks whose rows see few keys: what the host counts of them, and that the tiles that a call gets then visit less.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import corpus
from benchmarks.defaults import Cell
from benchmarks.recorded import read_rows
from cuir import Specification, parse, transfer
from cuir.attn.masks.block_lists import block_lists
from cuir.attn.splicing.splice import TransferResult
from cuir.performance.selection import Evidence, choose, cost
from cuir.performance.selection import shipped_table as table
from cuir.performance.selection.work import Strips, Work
from cuir.performance.timing.problem import Shape
from cuir.spec.specification import Lengths
from cuir.syntax.types import BF16
from tests.performance.selection.conftest import ORIGIN, adapt, work

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


@pytest.mark.sweep(4)
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


AT = Lengths(4, 16, 16, 4096, 4096)
ROOT = Path(__file__).parents[3]


def dilated(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return (q_idx >= kv_idx) & (q_idx - kv_idx <= 16) & ((q_idx - kv_idx) % 2 == 0)


def pieces(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return (q_idx // 24 == kv_idx // 24) | (kv_idx == q_idx * h)


def neighbours(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return ((q_idx // 64 - kv_idx // 64).abs() <= 3) & ((q_idx % 64 - kv_idx % 64).abs() <= 3)


@functools.cache
def transfer_mod(mod: Any) -> TransferResult:
    variant = transfer(ORIGIN, Specification(mod.__name__, mod))
    assert variant.mask is not None, "it has block lists"
    return variant


def work_of(mod: Any) -> Work:
    result = Work.of(transfer_mod(mod).program, mask=transfer_mod(mod).mask)
    assert result is not None
    return result


@pytest.mark.parametrize("mod", [dilated, pieces])
@pytest.mark.parametrize(("BM", "BN"), [(64, 80), (128, 64), (192, 128)])
def test_blocks_that_are_counted_are_those_of_the_lists(mod: Any, BM: int, BN: int) -> None:
    """Ragged at both ends; of two heads both are looked at, of few queries all."""
    at = Lengths(1, 2, 2, 900, 1000)
    count, _ = block_lists(transfer_mod(mod).mask, transfer_mod(mod).numbers, at, BM, BN)  # type: ignore[arg-type]
    some, n = work_of(mod).count_blocks(at, transfer_mod(mod).numbers, {"BM": BM, "BN": BN})
    assert work_of(mod).can_count and torch.equal(torch.tensor([some.tolist(), n.tolist()]), count[0].permute(2, 0, 1).long())


def test_of_many_queries_some_strips_are_looked_at() -> None:
    of = work_of(dilated)
    some, n = of.count_blocks(AT, transfer_mod(dilated).numbers, {"BM": 128, "BN": 128})
    assert n.shape == (1, 32) and n.max() <= 2 and (some == n).all()
    looked = next(iter(of.strips.values()))
    assert looked is not None and len(looked.first) == 8 and (looked.first % 384 == 0).all() and looked.first.max() < 4096
    assert Strips.of(of.mask, Lengths(1, 1, 1, 128, 1 << 20), {}) is None, "a strip of so many keys takes too long"  # type: ignore[arg-type]
    assert of.count_blocks(AT, {}, {"BM": 80, "BN": 128})[0].shape == (52,), "tiles that strips do not divide into are guessed at"


def test_strips_are_looked_at_on_the_host() -> None:
    of = work_of(dilated)
    numbers = transfer_mod(dilated).numbers
    ours = Strips.of(of.mask, AT, numbers)  # type: ignore[arg-type]
    with torch.device("meta"):  # as users who set a default device
        result = Strips.of(of.mask, AT, numbers)  # type: ignore[arg-type]
    assert result is not None and ours is not None and (result.some == ours.some).all() and (result.whole == ours.whole).all()


def test_what_reads_data_is_not_counted() -> None:
    result = adapt("document")
    of = Work.of(result.program, mask=result.mask)
    assert of is not None and result.mask is not None and of.mask is None and not of.can_count
    assert cost.rank_smaller_tiles(of, Shape(4, 16, 16, 4096, 4096, 64), {}, 132, {}, {"BM": 128, "BN": 128}) == []


def choose_setting(result: TransferResult, D: int, numbers: dict[str, int | float], *, alone: bool = False, **lengths: int) -> Any:
    """Return the setting of a call; alone: without the model."""
    fixed = {"T": BF16, "D": D, "DV": D, **lengths}
    sources = ("table",) if alone else ("tuned", "table", "start", "model")
    return choose(result.program, fixed, AT, Evidence(sources=sources), numbers=numbers, mask=result.mask)  # type: ignore[arg-type]


@pytest.mark.sweep
@pytest.mark.parametrize("D", [64, 128])
@pytest.mark.parametrize("mod", [dilated, neighbours])
def test_tiles_of_a_narrow_mask_visit_less(mod: Any, D: int) -> None:
    """Counted by the block lists themselves, every pair looked at."""
    result, areas = transfer_mod(mod), []
    for alone in (True, False):
        setting = choose_setting(result, D, {}, alone=alone).setting
        count, _ = block_lists(result.mask, result.numbers, AT, setting["BM"], setting["BN"])  # type: ignore[arg-type]
        areas.append(int(count[..., 1].sum()) * setting["BM"] * setting["BN"])
    assert areas[1] <= cost.MAX_PAIR_RATIO * areas[0], areas


@pytest.mark.parametrize("D", [64, 128])
def test_bounds_that_keep_few_keys_take_smaller_tiles(D: int) -> None:
    created, of = adapt("local", left=8, right=8), work("local", left=8, right=8)
    numbers = {"left": 8, "right": 8}
    result, measured = (choose_setting(created, D, numbers, alone=alone) for alone in (False, True))  # type: ignore[arg-type]
    shape = Shape(4, 16, 16, 4096, 4096, D)
    assert (result.source, measured.source) == ("model", "table") and "rows see few keys" in result.why and measured.why in result.why
    assert cost.count_tile_pairs(of, shape, numbers, result.setting) <= cost.MAX_PAIR_RATIO * cost.count_tile_pairs(
        of, shape, numbers, measured.setting
    )
    assert choose_setting(created, D, numbers, BN=128).setting["BN"] == 128, "what is given stands"  # type: ignore[arg-type]
    wide = {"left": 1024, "right": 1024}
    assert choose_setting(created, D, wide).source == "table"  # type: ignore[arg-type]


def test_what_was_measured_stands() -> None:
    """In no cell of which the table was made does the model speak against it."""
    (path,) = (ROOT / "benchmarks/results").glob("defaults-h200-*.jsonl.xz")
    rows = read_rows(path)
    cells = {
        Cell(r["variant"], Shape(*r["shape"]))
        for r in rows
        if r.get("variant") in ("sliding_window", "causal", "document") and r["shape"][1] == 32
    }
    assert len(cells) > 50
    for cell in cells:
        created, shape = adapt(cell.variant), cell.shape
        numbers = {n: cell.parameters[n] for n in created.numbers if n in cell.parameters}
        fixed = {"T": BF16, "D": shape.D, "DV": shape.D}
        result = choose(created.program, fixed, shape.lengths, numbers=numbers, mask=created.mask)
        if result.source != "table":
            assert table.count_waves(shape, 132) < table.MIN_WAVES, (cell, result)
