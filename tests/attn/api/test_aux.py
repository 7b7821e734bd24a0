"""`return_aux`: LSE and the largest score of each query, as PyTorch's flex_attention gives them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._higher_order_ops.flex_attention import math_attention
from torch.nn.attention import flex_attention as torch_flex
from torch.nn.attention.flex_attention import AuxRequest

from cuir import CuirError, Specification, attention, create_block_mask, flex_attention
from cuir.attn.api import prepared_calls

M, N, D = 90, 200, 64
Mod = Callable[..., Any]
TABLE = torch.arange(N) // 40


def documents(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (TABLE[q] == TABLE[k]) & (q < 80)


def late(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k + 20


def capped(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return 20 * torch.tanh(s / 20) + h


def hidden(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return torch.where(k % 3 == 0, s, -float("inf"))


def tensors(spread: float = 1.0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, 2, n, D, generator=g).half() for n in (M, N, N))
    return q, (k * torch.linspace(0.1, spread, N)[:, None]).half(), v


@pytest.mark.sweep
@pytest.mark.parametrize("score", [None, capped, hidden], ids=["plain", "capped", "hidden"])
@pytest.mark.parametrize("mod", [None, documents, late], ids=["all", "documents", "late"])
@pytest.mark.parametrize("spread", [1.0, 30.0])
def test_as_pytorch_gives_them(score: Mod | None, mod: Mod | None, spread: float) -> None:
    q, k, v = tensors(spread)
    mask = create_block_mask(mod, None, None, M, N, "cpu") if mod else None
    whole = mask if mask is not None else create_block_mask(torch_flex.noop_mask, None, None, M, N, "cpu")
    floats = (x.float() for x in (q, k, v))
    _, lse, most = math_attention(
        *floats, score or torch_flex._identity, whole.as_tuple(), D**-0.5, {}
    )  # in powers of 2, as PyTorch's kernels give them
    o, aux = flex_attention(q, k, v, score, mask, return_aux=AuxRequest(lse=True, max_scores=True), backend="interpret")
    assert aux.max_scores.dtype == most.dtype == torch.float32 and aux.max_scores.shape == (2, 2, M)
    torch.testing.assert_close(aux.max_scores, most * math.log(2), atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(aux.lse, lse * math.log(2), atol=2e-3, rtol=1e-4)
    assert torch.equal(o, flex_attention(q, k, v, score, mask, backend="interpret"))


def test_what_is_not_asked_for_is_not_given() -> None:
    q, k, v = tensors()
    for lse in (False, True):
        for most in (False, True):
            prepared_calls._ATTENTIONS.clear()
            prepared_calls._WARM.clear()
            _, aux = flex_attention(q, k, v, return_aux=AuxRequest(lse=lse, max_scores=most), backend="interpret")
            assert (aux.lse is not None, aux.max_scores is not None) == (lse, most)
            assert ["MAX_SCORES" in kernel.transferred.text for kernel in prepared_calls._ATTENTIONS.values()] == [most]
    with pytest.raises(CuirError, match=r"U413.*return_lse"):
        flex_attention(q, k, v, return_lse=True, return_aux=AuxRequest(lse=True), backend="interpret")


def test_beside_other_weights() -> None:
    q, k, v = tensors()
    for options in ({"normalize": "relu"}, {"normalize": "sigmoid"}, {"sink": torch.ones(2)}):
        spec = Specification("wanted", late, capped, **options)  # type: ignore[arg-type]
        mask = create_block_mask(late, None, None, M, N, "cpu")
        _, aux = flex_attention(q, k, v, capped, mask, return_aux=AuxRequest(max_scores=True), backend="interpret", **options)  # type: ignore[call-overload]
        torch.testing.assert_close(aux.max_scores.double(), spec.most(q, k, D**-0.5), atol=1e-4, rtol=1e-5)


def test_warm_calls_tell_the_two_apart() -> None:
    q, k, v = tensors()
    mask = create_block_mask(documents, None, None, M, N, "cpu")
    first = flex_attention(q, k, v, None, mask, return_aux=AuxRequest(max_scores=True), backend="interpret")[1].max_scores
    for _ in range(2):
        assert flex_attention(q, k, v, None, mask, return_aux=AuxRequest(lse=True), backend="interpret")[1].max_scores is None
        repeated = flex_attention(q, k, v, None, mask, return_aux=AuxRequest(max_scores=True), backend="interpret")[1]
        assert torch.equal(repeated.max_scores, first) and repeated.lse is None


def test_the_explicit_form() -> None:
    q, k, v = tensors()
    spec = Specification("asked", late, max_scores=True)
    attend = attention(spec, head_dim=D)
    o, lse, most = attend(q, k, v, return_lse=True, backend="interpret")
    torch.testing.assert_close(most.double(), spec.most(q, k, D**-0.5), atol=1e-4, rtol=1e-5)
    assert torch.equal(attend(q, k, v, backend="interpret"), o)  # type: ignore[arg-type]
    torch.compiler.reset()
    compiled = torch.compile(lambda *qkv: attend(*qkv, return_lse=True, backend="interpret"), fullgraph=True, backend="eager")
    for a, b in zip(compiled(q, k, v), (o, lse, most), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_in_a_graph(backend: str) -> None:
    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any) -> Any:
        return flex_attention(q * 1.0, k, v, capped, mask, return_aux=AuxRequest(lse=True, max_scores=True), backend="interpret")

    torch.compiler.reset()
    qkv, mask = tensors(), create_block_mask(documents, None, None, M, N, "cpu")
    with torch.no_grad():
        o, aux = torch.compile(call, fullgraph=True, backend=backend)(*qkv, mask)
    expected, second = call(*qkv, mask)
    assert torch.equal(o, expected) and torch.equal(aux.lse, second.lse) and torch.equal(aux.max_scores, second.max_scores)
