"""Calls of head dims above 256 in the interpreter, against float64: forward, gradients, decoding; and which calls are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from cuir import CuirError, attention_with_kv_cache, create_block_mask, flex_attention, varlen_attention
from cuir.flex import AuxRequest

M, N, H, HK = 70, 150, 4, 2
Mod = Callable[..., Any]
INTERPRETED: dict[str, Any] = {"backend": "interpret", "verify": "off"}


def draw(D: int, DV: int, dtype: torch.dtype = torch.float16) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(D + DV)
    return [torch.randn(1, h, n, d, generator=g).to(dtype) for h, n, d in ((H, M, D), (HK, N, D), (HK, N, DV))]


def scores_of(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return q @ k.repeat_interleave(H // HK, 1).mT * q.shape[-1] ** -0.5


def causal(b: Any, h: Any, i: Any, j: Any) -> Any:
    return j <= i + (N - M)


KEPT = torch.arange(N)[None] <= torch.arange(M)[:, None] + (N - M)


@pytest.mark.sweep(4)
@pytest.mark.parametrize("dims", [(320, 320), (512, 512), (264, 512), (512, 64), (64, 264), (576, 512), (576, 576), (64, 520)], ids=str)
def test_forward(dims: tuple[int, int]) -> None:
    q, k, v = draw(*dims)
    mask = create_block_mask(causal, None, None, M, N, device="cpu")
    o, aux = flex_attention(q, k, v, block_mask=mask, enable_gqa=True, return_aux=AuxRequest(lse=True, max_scores=True), **INTERPRETED)
    s = scores_of(q.double(), k.double()).masked_fill(~KEPT, -torch.inf)
    expected = torch.softmax(s, -1) @ v.double().repeat_interleave(H // HK, 1)
    torch.testing.assert_close(o.double(), expected, atol=2e-3, rtol=2e-3)
    torch.testing.assert_close(aux.lse.double(), s.logsumexp(-1), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(aux.max_scores.double(), s.amax(-1), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("weighting", [{"sink": 1.5}, {"normalize": "sigmoid"}, {"normalize": "relu"}], ids=str)
def test_weightings(weighting: dict[str, Any]) -> None:
    q, k, v = draw(320, 320)
    s = scores_of(q.double(), k.double())
    sunk = torch.cat([s, torch.full_like(s[..., :1], 1.5)], -1).softmax(-1)[..., :-1]
    weights = {"sink": sunk, "sigmoid": torch.sigmoid(s), "relu": torch.relu(s) / N}[str(weighting.get("normalize", "sink"))]
    o = flex_attention(q, k, v, enable_gqa=True, **weighting, **INTERPRETED)
    torch.testing.assert_close(o.double(), weights @ v.double().repeat_interleave(H // HK, 1), atol=1e-2, rtol=2e-3)


@pytest.mark.sweep(4)
@pytest.mark.parametrize("dims", [(320, 320), (512, 512), (264, 512), (512, 64), (576, 512), (576, 576), (64, 576), (576, 64)], ids=str)
def test_gradients(dims: tuple[int, int]) -> None:
    bias = torch.randn(H, N, generator=torch.Generator().manual_seed(0)).requires_grad_()
    tensors = [x.requires_grad_() for x in draw(*dims)]
    o, lse = flex_attention(
        *tensors,
        score_mod=lambda s, b, h, i, j: torch.where(j <= i + (N - M), s + bias[h, j], -float("inf")),
        enable_gqa=True,
        return_lse=True,
        **INTERPRETED,
    )
    grads = [torch.randn(x.shape, generator=torch.Generator().manual_seed(1)).to(x.dtype) for x in (o, lse)]
    q, k, v, exact_bias = (x.detach().double().requires_grad_() for x in (*tensors, bias))
    s = (scores_of(q, k) + exact_bias[:, None]).masked_fill(~KEPT, -torch.inf)
    outputs = torch.softmax(s, -1) @ v.repeat_interleave(H // HK, 1), s.logsumexp(-1)
    expected = torch.autograd.grad(outputs, (q, k, v, exact_bias), [x.double() for x in grads])
    actual = torch.autograd.grad((o, lse), (*tensors, bias), grads)
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a.double(), e, atol=2e-3 * float(e.abs().max()), rtol=0.0)


@pytest.mark.sweep(4)
@pytest.mark.parametrize("dims", [(320, 320), (512, 512), (576, 512), (576, 576)], ids=str)
def test_bits_are_of_the_sequence_alone(dims: tuple[int, int]) -> None:
    tensors = draw(*dims)
    alone, among = (
        flex_attention(*sequences, enable_gqa=True, batch_invariant=True, **INTERPRETED)
        for sequences in (tensors, [torch.cat([x.flip(2), x]) for x in tensors])
    )
    assert torch.equal(alone[0], among[1])


@pytest.mark.sweep(4)
@pytest.mark.parametrize("page", [0, 16, 4], ids=lambda page: f"pages of {page}" if page else "contiguous")
@pytest.mark.parametrize("dims", [(320, 320), (512, 512), (264, 512), (576, 512), (576, 576), (520, 64)], ids=str)
def test_decoding(dims: tuple[int, int], page: int) -> None:
    D, DV = dims
    g, new = torch.Generator().manual_seed(2), 3
    q, k, v = (torch.randn(2, n, h, d, generator=g).half() for n, h, d in ((new, H, D), (192, HK, D), (192, HK, DV)))
    lengths = torch.tensor([130, 77], dtype=torch.int32)
    for b, n in enumerate(lengths):
        k[b, n:] = v[b, n:] = float("nan")
    caches, table = [k, v], {}
    if page:
        places = torch.randperm(2 * 192 // page, generator=g)
        caches = [torch.empty(len(places), page, HK, x.shape[-1], dtype=x.dtype) for x in (k, v)]
        for cache, x in zip(caches, (k, v), strict=True):
            cache[places] = x.reshape(cache.shape)
        table = {"page_table": places.reshape(2, -1).int()}
    o = attention_with_kv_cache(q, *caches, cache_seqlens=lengths, causal=True, **table, **INTERPRETED)
    for b, n in enumerate(lengths.tolist()):
        keys, values = (x[b, :n].double().transpose(0, 1).repeat_interleave(H // HK, 0) for x in (k, v))
        s = q[b].double().transpose(0, 1) @ keys.mT * D**-0.5
        kept = torch.arange(n)[None] <= torch.arange(new)[:, None] + n - new
        expected = torch.softmax(s.masked_fill(~kept, -torch.inf), -1) @ values
        torch.testing.assert_close(o[b].double().transpose(0, 1), expected, atol=2e-3, rtol=2e-3)


def call_packed() -> None:
    q, k, v = (x[0].transpose(0, 1) for x in draw(320, 320))
    ends = torch.tensor([0, M], dtype=torch.int32), torch.tensor([0, N], dtype=torch.int32)
    varlen_attention(q, k, v, *ends, M, N, enable_gqa=True, **INTERPRETED)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: flex_attention(*draw(320, 320, torch.float32), enable_gqa=True, **INTERPRETED), "head dims above 256 in f32"),
        (call_packed, "packed sequences of head dims above 256"),
    ],
    ids=["f32", "packed"],
)
def test_refused(call: Callable[[], object], says: str) -> None:
    with pytest.raises(CuirError) as raised:
        call()
    result = raised.value.diagnostics[0]
    assert result.code == "U501" and says in result.message and result.hint


@pytest.mark.parametrize("arch", ["sm_80", "sm_75"])
def test_older_architectures_refuse(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from cuir.attn.kernels import card_kernels

    monkeypatch.setenv(card_kernels.VARIABLE, arch)
    card_kernels.choose_target.cache_clear()
    with pytest.raises(CuirError, match="head dims above 256"):
        flex_attention(*draw(320, 320), enable_gqa=True, backend="interpret", verify="off")
    card_kernels.choose_target.cache_clear()
