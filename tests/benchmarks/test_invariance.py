"""Batch-invariant calls in the interpreter: pieces of a sequence have the bits of the whole, in random batches."""

from __future__ import annotations

import pytest
import torch

from benchmarks.invariance import KINDS, SMALL, Kind, compare_bits, compare_functions
from cuir.attn.kernels import decoding, latent_settings

SHARES = 128  # keys, so that small sequences have several


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "FIXED_SHARE", SHARES)
    monkeypatch.setattr(latent_settings, "FIXED_SHARE", SHARES)
    small_kinds = {
        "cache": Kind("cache", torch.float16, 4, 2, 64, 16),
        "cache, window": Kind("cache", torch.float16, 4, 2, 64, 16, rule="window"),
        "cache, 8 bits": Kind("cache", torch.float16, 4, 2, 64, 64, True),
        "packed over a cache": Kind("packed", torch.float16, 4, 2, 64),
        "packed": Kind("varlen", torch.float16, 4, 2, 64),
        "dense": Kind("dense", torch.float16, 4, 2, 64),
        "latent": Kind("latent", torch.float16, 16, 1, 576),
        "latent, 8 bits": Kind("latent", torch.float16, 16, 1, 576, 64, True),
        "cache, head dim 256": Kind("cache", torch.float16, 4, 2, 320),  # columns split over warpgroups
    }
    for name, kind in small_kinds.items():
        monkeypatch.setitem(KINDS, name, kind)


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    "name",
    [
        "cache",
        "cache, window",
        "packed over a cache",
        "packed",
        "dense",
        *(
            pytest.param(name, marks=pytest.mark.thorough("tests of each kind of call compare some bits"))
            for name in ("cache, 8 bits", "latent", "latent, 8 bits", "cache, head dim 256")
        ),
    ],
)
def test_pieces_have_the_bits_of_the_whole(name: str) -> None:
    batches = 3 if KINDS[name].dim == 64 and not KINDS[name].eight else 1
    assert compare_bits(name, batches, SMALL, default=False)["with other bits"] == 0


def test_without_the_option_bits_differ() -> None:
    """So the batches show differences."""
    assert compare_bits("cache", 2, SMALL._replace(keys=(450,), capacities=(450, 3000)))["without the option"] > 0


def test_packed_and_dense_calls_give_the_same_bits() -> None:
    assert compare_functions(SMALL) == {"kind": "packed over a cache, and packed sequences", "same": True, "and dense": True}
