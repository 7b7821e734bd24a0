"""Tensors that a mod makes itself and reads at its indices: constants of the kernel, the same in each call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import cuir
from cuir import Specification
from cuir.attn.tracing.trace import trace
from cuir.text.diagnostics import CuirError
from tests.peer.reports.suite import dense_attention as dense_attention

S = 40
QKV = torch.randn(3, 1, 2, S, 16, generator=torch.Generator().manual_seed(0)).unbind()
OPTIONS: dict[str, Any] = {"backend": "interpret", "verify": "off"}


def distances(n: int) -> Callable[..., Any]:
    def score(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        slopes = torch.tensor([0.5, 2.0])
        return s - slopes[h] * torch.arange(n)[(q - k).abs()] + torch.eye(n)[q, k] - torch.linspace(0, 1, n).flip(0)[k]

    return score


def ours(q: Any, k: Any, v: Any, score_mod: Any) -> Any:
    return cuir.flex_attention(q, k, v, score_mod=score_mod, **OPTIONS)


@pytest.mark.parametrize("compiled", [False, True])
def test_scores_read_them_in_each_call(compiled: bool) -> None:
    call = torch.compile(ours, fullgraph=True) if compiled else ours
    mods = [distances(S), distances(S), distances(S + 9)]
    for mod in (mods[0], *mods):  # warm, of one structure, with another size
        leaves = [x.clone().requires_grad_() for x in QKV]
        actual, expected = call(*leaves, mod), dense_attention(*leaves, score_mod=mod)
        torch.testing.assert_close(actual, expected)
        for a, b in zip(*(torch.autograd.grad(o.square().sum(), leaves) for o in (actual, expected)), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_masks_read_them() -> None:
    def mask(b: Any, h: Any, q: Any, k: Any) -> Any:
        halves = torch.tensor([0] * 25 + [1] * 15)
        return torch.ones(S, S, dtype=torch.bool).tril()[q, k] & (halves[q] == halves[k])

    block_mask = cuir.create_block_mask(mask, None, None, S, S, device="cpu", BLOCK_SIZE=16)
    o = cuir.flex_attention(*QKV, block_mask=block_mask, **OPTIONS)
    torch.testing.assert_close(o, dense_attention(*QKV, block_mask=block_mask))


def test_one_that_is_too_short_is_refused() -> None:
    with pytest.raises(CuirError, match=r"U416.*39 elements"):
        ours(*QKV, distances(S - 1))


def test_equal_ones_are_one_parameter() -> None:
    def score(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        mine = torch.zeros(S)
        first = mine[q]
        mine[3] = 1.0
        return s + first + mine[k] + torch.zeros(S)[k] + torch.zeros(S).double()[k]

    values = [p.value for p in trace(Specification("constants", score_mod=score)).parameters]
    assert [float(v.sum()) for v in values if isinstance(v, torch.Tensor)] == [0.0, 1.0, 0.0]


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.integers(-5, 5), min_size=S, max_size=S),
    st.sampled_from([torch.int64, torch.bool, torch.float32, torch.float64, torch.uint8]),
)
def test_any_dtype_is_read_as_captured_tensors_are(values: list[int], dtype: torch.dtype) -> None:
    captured = torch.tensor(values).to(dtype)
    result = ours(*QKV, lambda s, b, h, q, k: s + torch.tensor(values, dtype=dtype)[k])
    assert torch.equal(result, ours(*QKV, lambda s, b, h, q, k: s + captured[k]))
