"""Numbers that calls take: Python's, NumPy's, and objects that are integers to `operator.index`."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

import cuir
from cuir import CuirError, create_block_mask, flex_attention
from cuir.spec import Specification

OPTIONS: dict[str, Any] = {"backend": "interpret", "verify": "off"}
Q = torch.randn(3, 2, 64, 32).half()
PACKED = Q[0].transpose(0, 1)
PLACES = torch.tensor([0, 30, 64], dtype=torch.int32)


class Index:
    def __init__(self, value: int):
        self.value = value

    def __index__(self) -> int:
        return self.value


def causal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return q_idx >= kv_idx


@pytest.mark.parametrize("number", [np.int64, np.uint8, Index], ids=["int64", "uint8", "index"])
def test_lengths_are_integers_of_any_kind(number: Any) -> None:
    ours = create_block_mask(causal, number(3), number(2), number(64), number(64), device="cpu", BLOCK_SIZE=(number(64), number(32)))
    plain = create_block_mask(causal, 3, 2, 64, 64, device="cpu", BLOCK_SIZE=(64, 32))
    assert ours.shape == plain.shape and ours.BLOCK_SIZE == (64, 32) and torch.equal(ours.kv_num_blocks, plain.kv_num_blocks)
    assert torch.equal(flex_attention(Q, Q, Q, None, ours, **OPTIONS), flex_attention(Q, Q, Q, None, plain, **OPTIONS))
    packed = (cuir.varlen_attention(PACKED, PACKED, PACKED, PLACES, PLACES, n, n, **OPTIONS) for n in (34, number(34)))
    assert torch.equal(*packed)
    cache = Q.transpose(1, 2)
    cached = (cuir.attention_with_kv_cache(cache[:, :1], cache, cache, cache_seqlens=n, max_seqlen=n, **OPTIONS) for n in (50, number(50)))
    assert torch.equal(*cached)


@pytest.mark.parametrize("bad", [True, np.bool_(True), 1.0, np.array([1, 2]), "3", torch.tensor(1.5), torch.tensor(3)], ids=repr)
def test_what_is_no_integer_is_refused(bad: Any) -> None:
    with pytest.raises(CuirError, match="U412"):
        create_block_mask(causal, bad, None, 64, 64)


@pytest.mark.parametrize(
    "scale", [np.float32(0.5), np.float16(0.5), Fraction(1, 2), np.float64(0.5)], ids=["f32", "f16", "fraction", "f64"]
)
def test_scales_and_sinks_are_numbers_of_any_kind(scale: Any) -> None:
    assert torch.equal(flex_attention(Q, Q, Q, scale=scale, sink=scale, **OPTIONS), flex_attention(Q, Q, Q, scale=0.5, sink=0.5, **OPTIONS))
    with pytest.raises(CuirError, match="U413"):
        flex_attention(Q, Q, Q, scale=np.bool_(True), **OPTIONS)


def test_an_attention_takes_them_too() -> None:
    def window(b: Any, h: Any, q_idx: Any, kv_idx: Any, *, width: int) -> Any:
        return abs(q_idx - kv_idx) < width

    result = (
        cuir.attention(
            Specification("window", window, captured={"width": number(5)}), head_dim=number(32), consts={"BM": number(64)}, verify="off"
        )
        for number in (int, np.int64)
    )
    assert torch.equal(*(a(Q, Q, Q, backend="interpret") for a in result))
