"""Settings of kernels by `mma`: the first of a list that a card holds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cuir.attn.kernels.experts import origin_of
from cuir.attn.kernels.warp_settings import choose_fitting, list_by_keys, list_by_queries
from cuir.runtime.cards import CARDS
from cuir.syntax.types import F16

TILES = [{"BM": m, "BN": n, "STAGES": 2} for m, n in ((128, 128), (64, 128), (64, 64), (64, 32))]


@pytest.mark.parametrize(("kilobytes", "tile"), [(64, (64, 64)), (50, (64, 64)), (40, (64, 32)), (8, (64, 32))])
def test_the_first_setting_that_a_card_holds_is_taken(kilobytes: int, tile: tuple[int, int]) -> None:
    card = replace(CARDS[7, 5], shared_bytes=kilobytes * 1024)
    setting = choose_fitting(origin_of("flash_fwd_sm75"), None, {"T": F16, "D": 128, "DV": 128}, TILES, card)
    assert setting == {"BM": tile[0], "BN": tile[1]}  # and nothing that the kernel lacks


def test_lists_begin_with_the_largest_tiles() -> None:
    for dim in (64, 256):
        for settings in (list_by_keys(dim, dim, False), list_by_queries(dim, dim, False)):
            sizes = [int(s["BM"]) * int(s["BN"]) for s in settings]  # type: ignore[call-overload]
            assert sizes == sorted(sizes, reverse=True)


def test_wide_heads_are_shared_among_warps() -> None:
    assert {s["SPLIT"] for s in list_by_keys(128, 128, False)} == {1}
    assert {s["SPLIT"] for s in list_by_keys(64, 192, False)} == {2}
    assert [list_by_keys(d, d, False, adds=True)[0]["SPLIT"] for d in (96, 128, 256)] == [1, 2, 4]


def test_narrow_heads_give_warps_two_slabs_of_rows() -> None:
    firsts = [settings[0] for settings in (list_by_keys(64, 64, False), list_by_queries(64, 64, False), list_by_queries(128, 128, False))]
    assert all(s["ROWS"] == 32 for s in firsts)
    others = list_by_keys(128, 128, False)[0], list_by_queries(256, 256, False)[0], list_by_keys(64, 64, True)[0]
    assert all(s.get("ROWS", 16) == 16 for s in others)
