"""PyTorch's PagedAttention on top: keys and values scattered over the pages of a cache that all sequences of a batch share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.attention.experimental._paged_attention import PagedAttention
from torch.nn.attention.flex_attention import noop_mask

from tests.peer.cases import ATTENTION, scenario
from tests.peer.judging import same_tensor
from tests.peer.mods import DTYPES, SCORE_MODS, causal_mask
from tests.peer.trial import Make, Trial, attention


def reserve(pages: int, page_size: int, batches: int, device: str, rounds: Sequence[Sequence[int]]) -> PagedAttention:
    """A table of pages that grew in rounds, so that the pages of a sequence are not neighbours. rounds: the lengths of the first sequences in each."""
    cache = PagedAttention(pages, page_size, batches, device=device)
    for lengths in rounds:
        for b, length in enumerate(lengths):
            cache.reserve(torch.tensor(b, device=device), torch.tensor(length, device=device))
    return cache


def fill(cache: PagedAttention, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """k and v [B, H, N, D] in the pages of a cache: [1, H, pages * page size, D]."""
    b, h, n, _ = k.shape
    stored = [torch.zeros(1, h, cache.n_pages * cache.page_size, x.shape[3], dtype=x.dtype, device=x.device) for x in (k, v)]
    positions = torch.arange(n, dtype=torch.int32, device=k.device).expand(b, n)
    cache.assign(torch.arange(b, dtype=torch.int32, device=k.device), positions, k.detach(), v.detach(), *stored)
    return stored[0], stored[1]


def read_pages(score_mod: Any, mask: Callable[[Any], Any], k: torch.Tensor, v: torch.Tensor, **options: Any) -> Make:
    """The call of q, k, v that reads k and v from pages, as PyTorch's tests of paged attention prepare it. mask: of the logical positions; its blocks of keys
    are the pages."""

    def make(api: Any) -> Callable[..., Any]:
        block_mask = mask(api)
        batch, n = k.shape[0], k.shape[2]
        page = block_mask.BLOCK_SIZE[1]
        slots = batch + 3
        growth = [(n // 4, n // 2, n // 4, n // 3), (n // 4, n // 2, n // 2, n // 2), (n // 2, n, n // 2, n), (n, n, n, n)]
        rounds = [[lengths[b % 4] for b in range(batch)] for lengths in growth]
        cache = reserve(-(-n // page) * slots, page, slots, str(k.device), rounds)
        stored = fill(cache, k, v)
        lengths = torch.full((batch,), n, dtype=torch.int64, device=k.device)
        call = attention(
            cache.get_score_mod(score_mod, kv_len=lengths),
            lambda _: cache.convert_logical_block_mask(block_mask, kv_len=lengths),
            **options,
        )(api)
        return lambda q, k, v: call(q, *stored)

    return make


def judge_paged(
    t: Trial, score_mod: Any, tensors: Sequence[torch.Tensor], mask: Callable[[Any], Any] | None = None, **options: Any
) -> None:
    """Compares attention over pages with PyTorch's over the keys as they are. No gradients are wanted of it."""
    if t.gradients:
        return
    q, k, v = tensors

    def of_all(api: Any) -> Any:
        return api.create_block_mask(noop_mask, q.shape[0], 1, q.shape[2], k.shape[2], device=t.device)

    options = {"return_lse": True, "enable_gqa": q.shape[1] != k.shape[1]} | options
    mask = mask or of_all
    t.judge(attention(score_mod, mask, **options), (q, k, v), ours=read_pages(score_mod, mask, k, v, **options), paged=True)


# ---- TestPagedAttention
@scenario(ATTENTION, "paged attention")
def convert_logical_block_mask(t: Trial) -> None:
    rounds = [(100, 200), (150, 300), (300, 512), (512, 512)]

    def convert(api: Any) -> Any:
        cache = reserve(8, 128, 2, t.device, rounds)
        mask = api.create_block_mask(causal_mask, 2, 1, 512, 512, device=t.device)
        return cache.convert_logical_block_mask(mask, kv_len=torch.full((2,), 512, device=t.device))

    actual, expected = convert(t.ours), convert(t.torch_api)
    for name in ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices"):
        same_tensor(getattr(actual, name), getattr(expected, name), name)


@scenario(ATTENTION, "paged attention", dtype=DTYPES, score_mod=SCORE_MODS)
def paged_builtin_score_mods(t: Trial, dtype: torch.dtype, score_mod: Any) -> None:
    rounds = [(100, 200, 50, 300), (100, 512, 300, 300), (512, 512, 300, 300), (512, 512, 512, 300), (512, 512, 512, 512)]
    q, k, v = t.qkv((4, 4, 512, 16), dtype=dtype)

    def mask(api: Any) -> Any:
        return api.create_block_mask(causal_mask, 4, 1, 512, 512, device=t.device)

    def ours(api: Any) -> Any:
        cache = reserve(32, 128, 4, t.device, rounds)
        stored = fill(cache, k, v)
        lengths = torch.full((4,), 512, device=t.device)
        converted = cache.convert_logical_block_mask(mask(api), kv_len=lengths)
        call = attention(cache.get_score_mod(score_mod, kv_len=lengths), lambda _: converted)(api)
        return lambda q, k, v: call(q, *stored)

    t.judge(attention(score_mod, mask), (q, k, v), ours=ours)
