"""The cost model of kernels by `mma`: what fits a card, and which way its estimates point."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cuir.attn.kernels.experts import origin_of
from cuir.performance.selection.warp_cost import VALUES, WarpSetting, estimate_cycles, list_fitting, rank_candidates
from cuir.performance.selection.work import Work
from cuir.performance.timing.problem import Shape
from cuir.runtime.cards import CARDS, Card

DEFAULTS = {"BM": 128, "BN": 64, "WARPS": 4, "STAGES": 2, "QREGS": False}
SHAPE = Shape(4, 16, 16, 4096, 4096, 128)


@pytest.fixture(scope="module")
def work() -> Work:
    result = Work.of(origin_of("flash_fwd_sm75"))
    assert result is not None
    return result


def setting_of(**values: int) -> WarpSetting:
    return WarpSetting.of(SHAPE, values, DEFAULTS)


def test_shared_memory_and_registers_limit_the_resident_ctas() -> None:
    setting = setting_of(BM=128, BN=64, WARPS=8)
    assert setting.shared_bytes == 2 * (128 * 128 + 2 * 64 * 256) == 96 * 1024
    assert setting.count_resident(CARDS[8, 6]) == 1 and setting.count_resident(CARDS[7, 5]) == 0
    assert setting_of(BM=64, BN=32).count_resident(CARDS[8, 6]) == 2
    assert setting_of(BM=128, BN=128, WARPS=4).registers > 255 and setting_of(BM=128, BN=128, WARPS=4).count_resident(CARDS[8, 0]) == 0


def test_blocks_that_pass_through_registers_take_some() -> None:
    staged, loaded = (WarpSetting.of(SHAPE, {"BM": 64, "BN": 64}, d) for d in (DEFAULTS, {"BM": 64, "BN": 64}))
    assert loaded.registers - staged.registers == 64 * 256 // 256 == 64


def test_numbers_of_single_precision_take_more_room_and_time(work: Work) -> None:
    half, one, two = (replace(setting_of(BM=64, BN=32), parts=parts) for parts in (0, 1, 2))
    assert one.shared_bytes == two.shared_bytes == 2 * half.shared_bytes and half.registers < one.registers < two.registers
    cycles = [estimate_cycles(work, SHAPE, {}, setting, CARDS[8, 0]) for setting in (half, one, two)]
    assert cycles == sorted(cycles) and cycles[2] > 2 * cycles[0]
    narrow = [
        WarpSetting.of(SHAPE, s, {**DEFAULTS, "PARTS": 2}) for s in list_fitting((128, 128), {}, {**DEFAULTS, "PARTS": 2}, CARDS[8, 0])
    ]
    assert narrow[0].spilled == 0 and all(setting.rows == 16 for setting in narrow)


@pytest.mark.parametrize("card", CARDS.values(), ids=lambda card: card.name)
def test_ranked_settings_fit(card: Card, work: Work) -> None:
    ranked = rank_candidates(work, SHAPE, {}, card, {}, DEFAULTS)
    assert ranked and all(WarpSetting.of(SHAPE, s, DEFAULTS).shared_bytes <= card.shared_bytes for s in ranked)
    assert all(set(s) <= set(VALUES) for s in ranked)


def test_requested_values_are_kept(work: Work) -> None:
    assert {s["BN"] for s in rank_candidates(work, SHAPE, {}, CARDS[8, 0], {"BN": 32}, DEFAULTS)} == {32}
    assert {frozenset(s) for s in rank_candidates(work, SHAPE, {}, CARDS[8, 0], {}, {"BM": 64, "BN": 64})} == {frozenset({"BM", "BN"})}


def test_estimates_follow_the_work_and_the_card(work: Work) -> None:
    setting, card = setting_of(BM=128, BN=64, WARPS=8), CARDS[8, 0]
    cycles = estimate_cycles(work, SHAPE, {}, setting, card)
    assert 1.8 < estimate_cycles(work, replace(SHAPE, B=8), {}, setting, card) / cycles < 2.2
    assert estimate_cycles(work, SHAPE, {}, setting, replace(card, product_rate=card.product_rate // 4)) > 1.5 * cycles
    assert estimate_cycles(
        work, SHAPE, {}, setting_of(BM=128, BN=64, WARPS=8, STAGES=1), replace(card, shared_total=card.shared_bytes)
    ) < float("inf")


def test_without_a_problem_the_largest_tiles_come_first() -> None:
    fitting = list_fitting((128, 128), {}, DEFAULTS, CARDS[8, 6])
    sizes = [int(s["BM"]) * int(s["BN"]) for s in fitting]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] == 128 * 128
