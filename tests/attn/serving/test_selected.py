"""Attention over selected blocks in the interpreter, against a dense mask in float64; and what is told of arguments that do not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cuir import CuirError, selected_attention

INTERPRETED: dict[str, Any] = {"backend": "interpret", "verify": "off"}


def draw(at: tuple[int, int, int, int, int], D: int, DV: int, dtype: torch.dtype = torch.float16, seed: int = 0) -> list[torch.Tensor]:
    B, H, HK, M, N = at
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(B, h, n, d, generator=g).to(dtype) for h, n, d in ((H, M, D), (HK, N, D), (HK, N, DV))]


def select(blocks: torch.Tensor, heads: int, M: int, N: int, size: int, span: int) -> torch.Tensor:
    """Return the pairs in selected blocks, one pair after another: [B or 1, H, M, N]."""
    per = heads // blocks.shape[1]
    return torch.stack(
        [
            torch.stack(
                [
                    torch.stack([(torch.arange(N)[:, None] // size == blocks[b, h // per, q // span]).any(-1) for q in range(M)])
                    for h in range(heads)
                ]
            )
            for b in range(blocks.shape[0])
        ]
    )


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kept: torch.Tensor, score: Callable[..., Any] | None = None
) -> tuple[torch.Tensor, ...]:
    """Return O and LSE of a dense mask, in the dtype of q."""
    per = q.shape[1] // k.shape[1]
    s = q @ k.repeat_interleave(per, 1).mT * q.shape[-1] ** -0.5
    s = (s if score is None else score(s)).masked_fill(~kept, -torch.inf)
    empty = ~kept.any(-1, keepdim=True)
    p = torch.where(empty, 0.0, s.masked_fill(empty, 0.0).softmax(-1))
    return p @ v.repeat_interleave(per, 1), s.logsumexp(-1)


def causal(M: int, N: int) -> torch.Tensor:
    return torch.arange(N)[None] <= torch.arange(M)[:, None] + (N - M)


@given(
    st.sampled_from([16, 32, 64, 128]),
    st.sampled_from([1, 2, 3, 8, 40, 64, 128]),
    st.sampled_from([(1, 1), (4, 1), (6, 2), (16, 1), (2, 2)]),
    st.integers(1, 24),
    st.integers(0, 200),
    st.integers(0, 2**16),
)
@settings(max_examples=8, deadline=None)
def test_calls_agree_with_a_dense_mask(size: int, span: int, heads: tuple[int, int], M: int, N: int, seed: int) -> None:
    H, HK = heads
    rng = torch.Generator().manual_seed(seed)
    of_lists = (1, HK, H)[seed % 3]
    B, total = 1 + seed % 2, -(-N // size)
    q, k, v = draw((B, H, HK, M, N), 64, 32 if seed % 5 == 0 else 64, seed=seed)
    blocks = torch.randint(-1, max(total, 0) or 1, (B if seed % 7 else 1, of_lists, -(-M // span), 1 + seed % 4), generator=rng)
    blocks = torch.where(blocks < total, blocks, -1).to(torch.int32 if seed % 2 else torch.int64)
    o, lse = selected_attention(
        q, k, v, blocks, block_size=size, queries_per_group=span, causal=seed % 2 == 0, return_lse=True, **INTERPRETED
    )
    kept = select(blocks, H, M, N, size, span).expand(B, -1, -1, -1)
    expected, sums = attend(q.double(), k.double(), v.double(), kept & causal(M, N) if seed % 2 == 0 else kept)
    torch.testing.assert_close(o.double(), expected, atol=3e-3, rtol=3e-3)
    torch.testing.assert_close(lse.double(), sums, atol=1e-5, rtol=1e-5)


def test_rules_counts_and_strides() -> None:
    at = B, H, HK, M, N = 2, 4, 2, 20, 150
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in draw(at, 72, 40, torch.bfloat16))
    bias = torch.randn(H, N, generator=torch.Generator().manual_seed(1))
    blocks, counts = torch.tensor([2, 0, 1], dtype=torch.int32).expand(1, HK, 5, 3), torch.tensor([0, 1, 2, 3, 9]).expand(B, HK, 5)

    def odd(b: Any, h: Any, i: Any, j: Any) -> Any:
        return (i + j) % 3 != 0

    o = selected_attention(
        q,
        k,
        v,
        blocks,
        counts=counts,
        queries_per_group=4,
        block_mask=odd,
        score_mod=lambda s, b, h, i, j: s + bias[h, j],
        scale=0.1,
        **INTERPRETED,
    )
    listed = torch.where(torch.arange(3) < counts[..., None], blocks, -1)
    kept = select(listed, H, M, N, 64, 4) & ((torch.arange(M)[:, None] + torch.arange(N)) % 3 != 0)
    factor = 0.1 * 72**0.5
    expected, _ = attend(q.double() * factor, k.double(), v.double(), kept, lambda s: s + bias.double()[:, None])
    torch.testing.assert_close(o.double(), expected, atol=2e-2, rtol=2e-2)
    assert o.stride(1) < o.stride(2) and (o[:, :, :4] == 0).all()


Q, K, V = draw((1, 4, 2, 20, 100), 64, 64)
LISTS = torch.zeros(1, 2, 20, 2, dtype=torch.int32)
BAD: list[tuple[str, str, str, Callable[[], Any]]] = [
    ("size", "U413", "block_size must be 16, 32, 64 or 128, found 48", lambda: selected_attention(Q, K, V, LISTS, block_size=48)),
    (
        "span",
        "U413",
        "queries_per_group must be a positive integer, found 0",
        lambda: selected_attention(Q, K, V, LISTS, queries_per_group=0),
    ),
    (
        "groups",
        "U408",
        "`blocks` must be [1 or 1, 1, 2 or 4 heads, 10 groups of 2 queries, n]",
        lambda: selected_attention(Q, K, V, LISTS, queries_per_group=2),
    ),
    ("heads", "U408", "`blocks` must be", lambda: selected_attention(Q, K, V, LISTS[:, :1].expand(1, 3, 20, 2))),
    ("counts", "U408", "`counts` must be", lambda: selected_attention(Q, K, V, LISTS, counts=LISTS)),
    ("dtype", "U404", "`blocks` must be int32, found float32", lambda: selected_attention(Q, K, V, LISTS.float())),
    ("list", "U403", "`blocks` must be a tensor of int32, found list", lambda: selected_attention(Q, K, V, LISTS.tolist())),
    ("block", "U413", "blocks must be below 2, the blocks of 64 of 100 keys, found 2", lambda: selected_attention(Q, K, V, LISTS + 2)),
    ("device", "U407", "`blocks` must be on the device of `q", lambda: selected_attention(Q, K, V, LISTS.to("meta"))),
    (
        "wide",
        "U110",
        "head dims of attention over selected blocks are from 1 to 256",
        lambda: selected_attention(*draw((1, 4, 2, 20, 100), 320, 320), LISTS),
    ),
    (
        "f32",
        "U501",
        "attention over selected blocks in f32",
        lambda: selected_attention(Q.float(), K.float(), V.float(), LISTS, **INTERPRETED),
    ),
]


@pytest.mark.parametrize(("code", "says", "call"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_errors_say_what_was_expected(code: str, says: str, call: Callable[[], Any]) -> None:
    with pytest.raises(CuirError) as raised:
        call()
    assert raised.value.diagnostics[0].code == code and says in raised.value.diagnostics[0].message


def test_gradients_of_captured_tensors_are_refused() -> None:
    bias = torch.zeros(100, requires_grad=True)
    with pytest.raises(CuirError, match="U410"):
        selected_attention(Q, K, V, LISTS, score_mod=lambda s, b, h, i, j: s + bias[j], **INTERPRETED)


@given(
    st.sampled_from([16, 32, 64, 128]),
    st.sampled_from([1, 3, 8, 64]),
    st.sampled_from([(1, 1), (6, 2), (4, 1)]),
    st.integers(1, 20),
    st.integers(1, 200),
    st.integers(0, 2**16),
)
@settings(max_examples=5, deadline=None)
def test_gradients_agree_with_a_dense_mask(size: int, span: int, heads: tuple[int, int], M: int, N: int, seed: int) -> None:
    H, HK = heads
    B, total = 1 + seed % 2, -(-N // size)
    rng = torch.Generator().manual_seed(seed)
    blocks = torch.randint(-1, total, (B, (1, HK, H)[seed % 3], -(-M // span), 1 + seed % 4), generator=rng)
    inputs = [x.requires_grad_() for x in draw((B, H, HK, M, N), 64, 40, seed=seed)]
    bias = torch.randn(N, generator=rng)
    o, lse = selected_attention(
        *inputs,
        blocks,
        block_size=size,
        queries_per_group=span,
        causal=True,
        score_mod=lambda s, b, h, i, j: 3 * torch.tanh(s / 3) + bias[j],
        return_lse=True,
        **INTERPRETED,
    )
    grads = [torch.randn(x.shape, generator=rng).to(x.dtype) for x in (o, lse)]
    exact = [x.detach().double().requires_grad_() for x in inputs]
    kept = select(blocks, H, M, N, size, span).expand(B, -1, -1, -1) & causal(M, N)
    expected, sums = attend(*exact, kept, lambda s: 3 * torch.tanh(s / 3) + bias.double())  # type: ignore[arg-type]
    loss = (expected * grads[0].double()).sum() + torch.where(kept.any(-1), sums * grads[1], 0.0).sum()
    for mine, theirs in zip(torch.autograd.grad((o, lse), inputs, grads), torch.autograd.grad(loss, exact), strict=True):
        theirs = theirs.nan_to_num(0.0)
        torch.testing.assert_close(mine.double(), theirs, atol=3e-3 * float(theirs.abs().max()) + 1e-6, rtol=0.0)


def test_gradients_of_an_expanded_key_and_of_few_outputs() -> None:
    q, k, v = (x.requires_grad_() for x in (draw((2, 4, 2, 5, 100), 64, 64)[0], *draw((1, 4, 2, 5, 100), 64, 64)[1:]))
    blocks = torch.zeros(1, 1, 5, 1, dtype=torch.int32)
    _, lse = selected_attention(q, k, v, blocks, return_lse=True, **INTERPRETED)
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    _, sums = attend(exact[0], *(x.expand(2, -1, -1, -1) for x in exact[1:]), torch.arange(100) < 64)
    mine = torch.autograd.grad(lse.sum(), (q, k, v), create_graph=True)
    for a, e in zip(mine, torch.autograd.grad(sums.sum(), exact[:2]), strict=False):
        torch.testing.assert_close(a.double(), e, atol=3e-3, rtol=3e-3)
    assert mine[2].shape == v.shape and not mine[2].any()
    with pytest.raises(CuirError, match="U410"):
        torch.autograd.grad(mine[0].float().sum(), q)


def test_gradients_of_wide_heads_are_refused() -> None:
    q, k, v = draw((1, 4, 2, 20, 100), 192, 128)
    with pytest.raises(CuirError, match="head dims to 128"):
        selected_attention(q.requires_grad_(), k, v, LISTS, **INTERPRETED)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("size", "span"), [(64, 1), (16, 1), (32, 4), (128, 128), (64, 64)])
@pytest.mark.parametrize(("H", "HK"), [(16, 1), (64, 4), (4, 4), (12, 2)])
@pytest.mark.parametrize("D", [64, 128])
def test_calls_on_a_gpu(dtype: torch.dtype, size: int, span: int, H: int, HK: int, D: int) -> None:
    """O, LSE and gradients agree with a dense mask, and have the same bits in every run."""
    M, N = 300, 700
    q, k, v = (x.cuda().requires_grad_() for x in draw((2, H, HK, M, N), D, D, dtype))
    g = torch.Generator().manual_seed(3)
    blocks = torch.randint(-1, -(-N // size), (2, HK, -(-M // span), 6), generator=g)
    kept = (select(blocks, H, M, N, size, span) & causal(M, N)).cuda()
    do = torch.randn(q.shape, generator=g).to(dtype).cuda()
    runs = []
    for _ in range(2):
        o, lse = selected_attention(q, k, v, blocks.cuda(), block_size=size, queries_per_group=span, causal=True, return_lse=True)
        runs.append((o, lse, *torch.autograd.grad(o, (q, k, v), do)))
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    expected, sums = attend(*exact, kept)  # type: ignore[arg-type]
    atol = 4e-3 if dtype == torch.float16 else 3e-2
    torch.testing.assert_close(runs[0][0].double(), expected, atol=atol, rtol=atol)
    torch.testing.assert_close(runs[0][1].double(), sums, atol=1e-4, rtol=1e-4)
    for a, e in zip(runs[0][2:], torch.autograd.grad(expected, exact, do.double()), strict=True):
        torch.testing.assert_close(a.double(), e.nan_to_num(0.0), atol=atol * float(e.nan_to_num(0.0).abs().max()), rtol=0.0)
