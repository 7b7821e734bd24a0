"""Calls whose mods capture float64: looked at when the numbers are new, in every kind of call."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import cuir
from cuir import CuirError, create_block_mask, flex_attention, varlen_attention
from cuir.attn.kernels import attention_kernel
from cuir.attn.tracing.float64_captures import Doubles

N, D = 16, 16
OPTIONS: dict[str, Any] = {"backend": "interpret", "verify": "off"}
torch.manual_seed(0)
Q, K, V = (x.half() for x in torch.randn(3, 1, 1, N, D))
PLACES = torch.tensor([0, N], dtype=torch.int32)


def call(how: str, mask: Any) -> torch.Tensor:
    q, k, v = (x[0].transpose(0, 1) for x in (Q, K, V))
    if how == "packed":
        o: torch.Tensor = varlen_attention(q, k, v, PLACES, PLACES, block_mask=mask, **OPTIONS)
        return o.transpose(0, 1)[None]
    if how == "cache":
        o = cuir.attention_with_kv_cache(q[None], k[None], v[None], cache_seqlens=N, block_mask=mask, **OPTIONS)
        return o.transpose(1, 2)
    attention = torch.compile(flex_attention, backend="eager", fullgraph=True) if how == "compiled" else flex_attention
    o = attention(Q, K, V, block_mask=create_block_mask(mask, None, None, N, N, device="cpu"), **OPTIONS)
    return o


@pytest.mark.parametrize("how", ["dense", "compiled", "packed", "cache"])
def test_what_counts_is_what_counts_in_float64(how: str) -> None:
    seconds = 1.7e9 + torch.arange(N, dtype=torch.float64) * 7

    def near(x: torch.Tensor) -> Any:
        return lambda b, h, q_idx, kv_idx: (x[q_idx] - x[kv_idx]).abs() < 20

    with pytest.raises(CuirError, match="U417"):
        call(how, near(seconds))
    o = call(how, near(seconds - seconds.min() + 0.1))  # no numbers of float32, and the same pairs
    scores = (Q.double() @ K.double().mT * D**-0.5).masked_fill((seconds[:, None] - seconds).abs() >= 20, -torch.inf)
    torch.testing.assert_close(o.double(), scores.softmax(-1) @ V.double(), atol=2e-3, rtol=1e-2)


@pytest.mark.parametrize("how", ["dense", "compiled"])
def test_numbers_are_looked_at_when_they_change_and_not_again(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gates, looks = torch.rand(N, dtype=torch.float64), []
    check = Doubles.check
    monkeypatch.setattr(Doubles, "check", lambda self, *args: (looks.append(1), check(self, *args)))
    mask = create_block_mask(lambda b, h, q_idx, kv_idx: gates[kv_idx] > 0.5, None, None, N, N, device="cpu")
    attention = torch.compile(flex_attention, backend="eager", fullgraph=True) if how == "compiled" else flex_attention
    for _ in range(3):
        attention(Q, K, V, block_mask=mask, **OPTIONS)
    assert len(looks) == 1
    gates[3] = 0.5 + 2.0**-40
    with pytest.raises(CuirError, match="U417"):
        attention(Q, K, V, block_mask=mask, **OPTIONS)
    gates[3] = 0.75
    attention(Q, K, V, block_mask=mask, **OPTIONS)
    assert len(looks) == 3


def test_learned_biases_of_float64_have_gradients() -> None:
    bias = torch.rand(N, dtype=torch.float64, requires_grad=True)
    o = flex_attention(Q, K, V, lambda s, b, h, q_idx, kv_idx: s + bias[kv_idx], **OPTIONS)
    (result,) = torch.autograd.grad(o.double().square().sum(), bias)  # type: ignore[union-attr]
    w = (Q.double() @ K.double().mT * D**-0.5 + bias).softmax(-1) @ V.double()
    torch.testing.assert_close(result, torch.autograd.grad(w.square().sum(), bias)[0], atol=2e-3, rtol=1e-2)


def test_a_tensor_that_does_not_fit_is_refused_before_verification(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU too: verification would find another mask, and say so of a program that is right."""
    times = 1.7e9 + torch.arange(40, dtype=torch.float64) * 7
    attention = attention_kernel.attention(lambda b, h, q, k: (times[q] - times[k]).abs() < 20, head_dim=32)
    monkeypatch.setattr(attention_kernel, "need_hopper", lambda device: None)
    monkeypatch.setattr(
        type(attention.settings), "compile_for", lambda *args: pytest.fail("verified before its captured tensors were checked")
    )
    x = torch.randn(1, 1, 40, 32).half()
    with pytest.raises(CuirError, match="U417"):
        attention.ready(x, x, x, None, "auto")
