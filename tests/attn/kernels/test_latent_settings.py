"""Settings of decode kernels whose warpgroups share a tile: shares of the keys, blocks, pieces of whole panels."""

from __future__ import annotations

import pytest

from cuir.attn.kernels import decoding
from cuir.attn.kernels.experts import origin_of
from cuir.attn.kernels.latent_settings import (
    FIXED_SHARE,
    NARROW_BLOCK,
    LatentSettings,
    NarrowLatentSettings,
    SelectedTokensSettings,
    SplitCacheSettings,
    choose_block,
)
from cuir.checking.checked import Const
from cuir.checking.checker import check
from cuir.performance.search.space import fits
from cuir.spec.specification import Lengths
from cuir.syntax.types import F16, F32


def make_settings(latent: int = 512, joins: bool = True, packed: bool = True) -> LatentSettings:
    return LatentSettings(origin_of("mla_decode_sm90"), {"T": F16, "D": latent + 64, "DV": latent, "CHUNK": 64}, packed, joins, False)


@pytest.mark.parametrize(
    ("at", "splits", "tile"),
    [
        (Lengths(128, 128, 1, 1, 4096), 1, (1, 64)),
        (Lengths(128, 128, 1, 2, 4096), 1, (2, 32)),
        (Lengths(16, 128, 1, 1, 32768), 4, (1, 64)),
        (Lengths(1, 128, 1, 1, 8192), 32, (1, 64)),
        (Lengths(64, 64, 1, 1, 4096), 2, (1, 64)),
        (Lengths(128, 8, 1, 1, 8192), 1, (8, 8)),
        (Lengths(1, 16, 1, 1, 64), 1, (4, 16)),
    ],
)
def test_shares_shorten_the_last_wave(at: Lengths, splits: int, tile: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "count_processors", lambda: 132)
    consts = make_settings().choose_untuned(at)
    assert (consts.get("SPLITS", 1), (consts["BM"], consts["GROUP"])) == (splits, tile)
    assert consts.get("G", F16) == (F32 if splits > 1 else F16)


@pytest.mark.parametrize(("latent", "pieces"), [(128, 1), (256, 2), (384, 1), (512, 4)])
def test_pieces_are_whole_panels_and_the_kernel_takes_them(latent: int, pieces: int) -> None:
    settings = make_settings(latent)
    consts = settings.choose_untuned(Lengths(2, 16, 1, 1, 256))
    assert consts["PIECES"] == pieces
    check(settings.program, None, dict(consts))


@pytest.mark.parametrize("latent", [128, 256, 384, 512])
def test_the_kernel_of_8_bits_takes_its_settings(latent: int) -> None:
    fixed: dict[str, Const] = {"T": F16, "D": latent + 64, "DV": latent, "CHUNK": 32, "TOKENS": 1}
    fixed["SHARE"] = NarrowLatentSettings.fix_share(fixed)
    settings = NarrowLatentSettings(origin_of("mla_decode_f8_sm90"), fixed, True, True, False)
    consts = settings.choose_untuned(Lengths(2, 16, 1, 1, 3 * FIXED_SHARE))
    assert consts["SPLITS"] == 4 and consts["GROUP"] == 16
    assert check(settings.program, None, dict(consts)).consts["BN"] == NARROW_BLOCK


def test_weights_that_cannot_be_joined_are_not_shared_out() -> None:
    assert "SPLITS" not in make_settings(joins=False).choose_untuned(Lengths(1, 128, 1, 1, 8192))


def test_one_share_is_verified() -> None:
    settings = make_settings()
    consts = settings.choose_judged(settings.choose_untuned(Lengths(1, 128, 1, 1, 8192)))
    assert consts["SPLITS"] == 1 and consts["G"] == F16


@pytest.mark.parametrize(
    ("at", "splits"),
    [
        (Lengths(1, 128, 1, 4096, 2048), 1),
        (Lengths(128, 128, 1, 1, 2048), 1),
        (Lengths(16, 128, 1, 1, 2048), 4),
        (Lengths(1, 128, 1, 1, 2048), 16),
        (Lengths(1, 16, 1, 1, 64), 1),
        (Lengths(3, 6, 2, 1, 1), 1),
    ],
)
def test_lists_are_shared_out_where_multiprocessors_are_left(at: Lengths, splits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "count_processors", lambda: 132)
    fixed: dict[str, Const] = {"T": F16, "D": 192, "DV": 128}
    settings = SelectedTokensSettings(origin_of("mla_selected_sm90"), fixed, False, True, False)
    consts = settings.choose_untuned(at)
    assert consts.get("SPLITS", 1) == splits and consts.get("G", F16) == (F32 if splits > 1 else F16)
    check(settings.program, None, dict(consts))
    for joins in (True, False):
        invariant = SelectedTokensSettings(
            origin_of("mla_selected_sm90"), fixed | {"SHARE": SelectedTokensSettings.fix_share(fixed)}, False, joins, False
        )
        consts = invariant.choose_untuned(at)
        assert consts.get("SPLITS", 1) == 1  # lists of 4096 tokens and more would have several
        check(invariant.program, None, dict(consts))


@pytest.mark.parametrize("dims", [(512, 512), (512, 576), (576, 384), (576, 512), (576, 576)], ids=str)
def test_blocks_over_a_cache_are_the_largest_that_fit(dims: tuple[int, int]) -> None:
    program, block = origin_of("decode_split_sm90"), choose_block(*dims)
    fixed: dict[str, Const] = {"T": F16, "D": dims[0], "DV": dims[1], "CHUNK": 32}
    assert fits(program, None, fixed | {"BN": block, "GROUP": 64}) and (block == 64 or not fits(program, None, fixed | {"BN": 64}))
    shared = SplitCacheSettings.fix_share(fixed | {"BN": block})
    assert shared * block == FIXED_SHARE
    settings = SplitCacheSettings(program, fixed | {"BN": block, "SHARE": shared}, True, True, False)
    consts = settings.choose_untuned(Lengths(1, 16, 1, 1, 4 * FIXED_SHARE))
    assert settings.fits(consts) and consts["SPLITS"] == 4
