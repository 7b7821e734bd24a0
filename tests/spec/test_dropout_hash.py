"""The hash of dropout: its bits have the statistics of independent draws, and windows of a mask agree with the whole."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cuir import CuirError, Dropout, Lengths, draw_dropout_seed, dropout_mask
from cuir.spec.dropout_hash import factor_of, threshold_of
from tests.strategies.selection import examples

SEEDS = ((0, 0), (1, 0), (-1, 2**31 - 1), (-(2**31), 7), (12345, 678910))
SIGMAS = 6.5  # of 8 million correlations the largest is about 5.5


def seed(*words: int) -> torch.Tensor:
    return torch.tensor(words, dtype=torch.int32)


def standardise(mask: torch.Tensor, p: float) -> torch.Tensor:
    """Bits with mean 0 and variance 1."""
    return (mask.double() - (1 - p)) / math.sqrt(p * (1 - p))


def correlations(x: torch.Tensor, y: torch.Tensor, least: int = 4096) -> torch.Tensor:
    """Correlations of two masks [M, N] at all distances, in standard deviations of independent draws; 0 where fewer than `least` pairs overlap."""
    shape = [2 * n for n in x.shape]
    sums = torch.fft.ifft2(torch.fft.fft2(x, s=shape) * torch.fft.fft2(y, s=shape).conj()).real
    counts = torch.ones((), dtype=torch.float64)
    for d, n in enumerate(x.shape):
        distance = torch.arange(2 * n)
        overlap = (n - torch.minimum(distance, 2 * n - distance)).clamp(min=0).double()
        counts = counts * overlap.view([-1, 1] if d == 0 else [1, -1])
    return torch.where(counts >= least, sums / counts.clamp(min=1).sqrt(), 0.0)


@pytest.mark.sweep
@pytest.mark.parametrize("words", SEEDS)
@pytest.mark.parametrize("p", [0.1, 0.5])
def test_bits_of_a_head_are_uncorrelated(words: tuple[int, int], p: float) -> None:
    """Mean, rows, columns and blocks have the variance of independent draws, and so have products of bits at every distance."""
    x = standardise(dropout_mask(seed(*words), p, 1, 1, 768, 768)[0, 0], p)
    assert abs(x.mean() * 768) < 4
    for parts in (x.sum(1), x.sum(0)):
        assert abs((parts / 768**0.5).var() - 1) < 5 * (2 / 768) ** 0.5
    blocks = x.view(96, 8, 96, 8).sum((1, 3)) / 8
    assert abs(blocks.var() - 1) < 5 * (2 / 96**2) ** 0.5
    result = correlations(x, x)
    result[0, 0] = 0.0
    assert result.abs().max() < SIGMAS


def test_heads_batches_and_seeds_are_uncorrelated() -> None:
    def bits(words: tuple[int, int], b: int = 0, h: int = 0) -> torch.Tensor:
        return standardise(dropout_mask(seed(*words), 0.5, 2, 3, 512, 512)[b, h], 0.5)

    base = bits((7, 9))
    rest = [bits((7, 9), h=1), bits((7, 9), h=2), bits((7, 9), b=1), bits((8, 9)), bits((7, 10)), bits((9, 7)), bits((7 + 2**16, 9))]
    for second in rest:
        assert correlations(base, second).abs().max() < SIGMAS


def test_each_bit_of_the_seed_changes_half_of_the_mask() -> None:
    """The avalanche of both words: half of the bits change, in no row or column more than in others."""
    words = (0x1234567, -0x2345678)
    base = dropout_mask(seed(*words), 0.5, 1, 1, 64, 64)
    for word in range(2):
        for bit in range(32):
            second = list(words)
            flipped = (second[word] & 0xFFFFFFFF) ^ (1 << bit)
            second[word] = flipped - ((flipped >> 31) << 32)
            changed = (dropout_mask(seed(*second), 0.5, 1, 1, 64, 64) != base)[0, 0].double()
            assert abs(changed.mean() - 0.5) < 5 * 0.5 / 64
            assert (changed.mean(1) - 0.5).abs().max() < 6 * 0.5 / 8 and (changed.mean(0) - 0.5).abs().max() < 6 * 0.5 / 8


def test_small_probabilities_are_met() -> None:
    """Rates are exact: 2^23 pairs at p = 2^-16, and thresholds of probabilities that differ by 2^-24."""
    p = 2.0**-16
    count = int((~dropout_mask(seed(3, 4), p, 1, 4, 1024, 2048)).sum())
    assert abs(count - 128) < 5 * 128**0.5
    assert threshold_of(p) - threshold_of(p + 2.0**-24) == 2**8


def test_levels_of_the_hash_are_equally_frequent() -> None:
    """A mask of a larger probability is part of one of a smaller: what lies between two levels is a sixteenth of the pairs."""
    masks = [dropout_mask(seed(5, 6), i / 16, 1, 1, 512, 512) for i in range(17)]
    assert masks[0].all() and not masks[16].any()
    expected = 512 * 512 / 16
    squares = 0.0
    for larger, smaller in itertools.pairwise(masks):
        assert not (smaller & ~larger).any()
        squares += (int(larger.sum() - smaller.sum()) - expected) ** 2 / expected
    assert squares < 15 + 5 * 30**0.5


@examples(0.2)
@given(
    st.tuples(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**31), 2**31 - 1)),
    st.floats(0, 1),
    st.integers(0, 2**20),
    st.integers(0, 2**20),
)
def test_a_window_is_part_of_the_mask(words: tuple[int, int], p: float, m: int, n: int) -> None:
    window = dropout_mask(seed(*words), p, 2, 2, 3, 5, query_start=m, key_start=n)
    larger = dropout_mask(seed(*words), p, 2, 2, 5, 8, query_start=max(0, m - 2), key_start=max(0, n - 3))
    assert torch.equal(window, larger[:, :, min(m, 2) :, min(n, 3) :][:, :, :3, :5])


def test_the_ends_of_the_scale() -> None:
    assert dropout_mask(seed(1, 2), 0.0, 1, 2, 40, 40).all() and not dropout_mask(seed(1, 2), 1.0, 1, 2, 40, 40).any()
    assert factor_of(0.0) == 1.0 and factor_of(0.75) == 4.0 and factor_of(1.0) == 0.0
    assert threshold_of(1.0) == -(2**31) and threshold_of(0.0) == 2**31 - 1


def test_a_seed_is_of_the_default_generator() -> None:
    torch.manual_seed(11)
    first, second = draw_dropout_seed("cpu"), draw_dropout_seed("cpu")
    assert first.dtype == torch.int32 and first.shape == (2,) and not torch.equal(first, second)
    torch.manual_seed(11)
    assert torch.equal(draw_dropout_seed("cpu"), first)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"p": -0.5}, "from 0 to 1"),
        ({"p": math.nan}, "from 0 to 1"),
        ({"p": True}, "from 0 to 1"),
        ({"p": "half"}, "found 'half'"),
        ({"seed": torch.zeros(2)}, r"found float32 \[2\]"),
        ({"seed": torch.zeros(1, dtype=torch.int32)}, r"found int32 \[1\]"),
    ],
)
def test_malformed_dropout_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(CuirError, match=message) as caught:
        Dropout(**options)
    assert caught.value.diagnostics[0].code == "X103"
    with pytest.raises(CuirError, match=message) as caught:
        dropout_mask(**{"seed": seed(1, 2), "p": 0.5, **options}, B=1, H=1, M=2, N=2)
    assert caught.value.diagnostics[0].code == "U413"


def test_seeds_of_problems_differ() -> None:
    """So verification of several lengths tries several seeds."""
    seeds = {tuple(Dropout().seed_for(Lengths(b, 2, 1, m, n)).tolist()) for b in (1, 2) for m in (1, 40, 64) for n in (0, 64, 70)}
    assert len(seeds) == 18
