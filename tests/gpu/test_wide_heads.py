"""Attention of head dims above 256 on a GPU, beside float64: forward, gradients, decoding over contiguous and paged caches."""

from __future__ import annotations

import pytest
import torch

import cuir
from tests.gpu.isolation import run_isolated

DIMS = [(320, 320), (512, 512), (512, 576), (520, 64), (576, 512), (576, 576)]
ERROR = {"float16": 2e-3, "bfloat16": 1.2e-2}  # relative, in the Euclidean norm
H, HK = 4, 2


def expect(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ahead: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute O and LSE of causal attention in float64; query i attends to keys up to i + ahead."""
    q, k, v = (x.double() for x in (q, k, v))
    k, v = (x.repeat_interleave(H // HK, 1) for x in (k, v))
    queries, keys = (torch.arange(n, device=q.device) for n in (q.shape[2], k.shape[2]))
    scores = (q @ k.mT * q.shape[3] ** -0.5).masked_fill(keys > queries[:, None] + ahead, -torch.inf)
    return torch.softmax(scores, -1) @ v, scores.logsumexp(-1)


def require_close(actual: torch.Tensor, expected: torch.Tensor, dtype: str, name: str) -> None:
    error = float((actual.double() - expected).norm() / expected.norm())
    assert error < ERROR[dtype], (name, error)


def attention_is_right(D: int, DV: int, dtype: str, m: int, n: int) -> None:
    """Compare O, LSE and gradients with float64; a second call must give the same bits."""
    g = torch.Generator().manual_seed(D + DV + m)
    shapes = (2, H, m, D), (2, HK, n, D), (2, HK, n, DV)
    q, k, v = (torch.randn(*shape, generator=g).to("cuda", getattr(torch, dtype)).requires_grad_() for shape in shapes)
    ahead = n - m
    mask = cuir.create_block_mask(lambda b, h, i, j: j <= i + ahead, None, None, m, n, device="cuda")
    results = []
    for _ in range(2):
        o, lse = cuir.flex_attention(q, k, v, block_mask=mask, enable_gqa=True, return_lse=True)
        do = torch.randn(o.shape, generator=torch.Generator().manual_seed(1)).to(o)
        results.append((o, lse, *torch.autograd.grad(o, (q, k, v), do)))
    assert all(torch.equal(x, y) for x, y in zip(*results, strict=True)), "two calls differ"
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    expected, expected_lse = expect(*exact, ahead)
    gradients = torch.autograd.grad(expected, exact, do.double())
    for name, x, y in zip(("O", "LSE", "dQ", "dK", "dV"), results[0], (expected, expected_lse, *gradients), strict=True):
        require_close(x.detach(), y.detach(), dtype, name)


def decoding_is_right(D: int, DV: int, dtype: str, page: int, invariant: bool) -> None:
    """Compare decoding of sequences of different lengths with float64; `page` is 0 for a contiguous cache."""
    g, new, room = torch.Generator().manual_seed(D + DV + page), 3, 4096
    q, k, v = (
        torch.randn(3, t, h, d, generator=g).to("cuda", getattr(torch, dtype)) for t, h, d in ((new, H, D), (room, HK, D), (room, HK, DV))
    )
    lengths = torch.tensor([4000, 77, 1025], dtype=torch.int32)
    for b, n in enumerate(lengths):
        k[b, n:] = v[b, n:] = float("nan")
    caches, table = [k, v], {}
    if page:
        places = torch.randperm(3 * room // page, generator=g).cuda()
        caches = [torch.empty(len(places), page, HK, x.shape[-1], dtype=x.dtype, device="cuda") for x in (k, v)]
        for cache, x in zip(caches, (k, v), strict=True):
            cache[places] = x.reshape(cache.shape)
        table = {"page_table": places.reshape(3, -1).int()}
    o = cuir.attention_with_kv_cache(q, *caches, cache_seqlens=lengths.cuda(), causal=True, batch_invariant=invariant, **table)
    for b, n in enumerate(lengths.tolist()):
        expected, _ = expect(*(x[b, None, :length].transpose(1, 2) for x, length in ((q, new), (k, n), (v, n))), n - new)
        require_close(o[b, None].transpose(1, 2), expected, dtype, f"sequence {b}")


@pytest.mark.gpu
@pytest.mark.parametrize("dims", DIMS, ids=str)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_attention(dims: tuple[int, int], dtype: str) -> None:
    run_isolated(attention_is_right, *dims, dtype, 333, 700, seconds=300)


@pytest.mark.gpu
@pytest.mark.parametrize(("page", "invariant"), [(0, False), (64, False), (64, True), (16, False), (4, False)])
@pytest.mark.parametrize("dims", DIMS, ids=str)
def test_decoding(dims: tuple[int, int], page: int, invariant: bool) -> None:
    run_isolated(decoding_is_right, *dims, "bfloat16" if page == 64 else "float16", page, invariant, seconds=300)
