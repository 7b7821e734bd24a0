"""Settings of kernels of selected blocks: their tiles hold queries of one list, and what they need fits the GPU."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuir import Lengths
from cuir.attn.kernels.experts import origin_of
from cuir.attn.kernels.selected_settings import SelectedSettings, power_of_two, tile_rows
from cuir.syntax.types import F16


@given(st.integers(1, 300), st.integers(1, 300), st.sampled_from([64, 128]))
def test_a_tile_has_queries_of_one_list(per: int, span: int, most: int) -> None:
    queries, heads = tile_rows(per, span, most)
    assert span % queries == 0 and queries * heads in (64, most)
    assert queries * heads == 64 or queries * power_of_two(per) >= most  # no warpgroup without a row


@pytest.mark.sweep
@pytest.mark.parametrize("dims", [(64, 64), (128, 128), (192, 128), (256, 256), (64, 256)], ids=str)
@pytest.mark.parametrize("block", [16, 32, 64, 128])
@pytest.mark.parametrize("span", [1, 6, 128])
def test_settings_fit(dims: tuple[int, int], block: int, span: int) -> None:
    D, DV = dims
    settings = SelectedSettings(origin_of("selected_fwd_sm90"), {"T": F16, "D": D, "DV": DV, "BLOCK": block, "SPAN": span}, ())
    for at in (Lengths(1, 64, 4, 4096, 4096), Lengths(2, 3, 3, 5, 9), Lengths(1, 256, 2, 1, 1)):
        consts = settings.choose_untuned(at)
        settings.require_fit(consts)
        assert settings.choice(at).consts == consts
    assert settings.start["BN"] == max(64, block)
