"""A cache spread over processes, by tokens or heads, gives what one cache gives."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.device_mesh import init_device_mesh

from cuir import CuirError, attention_with_kv_cache
from cuir.distributed import append_to_sharded_cache, attention_with_sharded_cache
from tests.distributed.ranks import run_ranks

OPTIONS = {"backend": "interpret", "verify": "off", "return_lse": True}
LENGTHS, ROOM = [13, 5, 0], 16  # tokens of the sequences


def make_case(dtype: torch.dtype = torch.bfloat16) -> tuple[list[torch.Tensor], object, object]:
    """Return q, keys and values of the whole cache, a score_mod and a mask_mod."""
    torch.manual_seed(0)
    tensors = [torch.randn(len(LENGTHS), n, h, 16).to(dtype) for n, h in ((2, 4), (ROOM, 2), (ROOM, 2))]
    slopes = torch.linspace(0.1, 0.4, 4)
    score_mod = lambda score, b, h, q, k: score - slopes[h] * k  # noqa: E731
    return tensors, score_mod, lambda b, h, q, k: k != 3


def compare_tokens(dtype: torch.dtype, tolerance: float) -> bool:
    """Compare a cache spread by tokens, causal, with a sink; return whether all ranks have the same bits."""
    (q, k, v), score_mod, mask_mod = make_case(dtype)
    lengths, sink = torch.tensor(LENGTHS, dtype=torch.int32), torch.linspace(-1.0, 1.0, 4)
    mods = {"score_mod": score_mod, "block_mask": mask_mod, "sink": sink}
    o, lse = attention_with_kv_cache(q, k, v, cache_seqlens=lengths, causal=True, **mods, **OPTIONS)
    ranks = dist.get_world_size()
    part = -(-ROOM // ranks)
    first = part * dist.get_rank()
    k, v = (x[:, first : first + part].contiguous() for x in (k, v))
    split = {"cache_seqlens": (lengths - first).clamp(0, k.shape[1]), "starts": torch.full_like(lengths, first), "total_seqlens": lengths}
    own, own_lse = attention_with_sharded_cache(q, k, v, init_device_mesh("cpu", (ranks,)), **split, **mods, **OPTIONS)
    torch.testing.assert_close(own, o, atol=tolerance, rtol=0.0)
    torch.testing.assert_close(own_lse, lse, atol=1e-3, rtol=0.0)
    everyone = [torch.empty_like(own) for _ in range(ranks)]
    dist.all_gather(everyone, own)
    return all(x.equal(own) for x in everyone)


@pytest.mark.parametrize(("ranks", "dtype", "tolerance"), [(2, torch.bfloat16, 0.02), (3, torch.float32, 1e-3)])
def test_tokens_on_several_ranks_are_merged(ranks: int, dtype: torch.dtype, tolerance: float) -> None:
    """A sequence has no token on any rank, and three ranks are no power of two."""
    assert run_ranks(ranks, compare_tokens, dtype, tolerance) == [True] * ranks


def test_heads_of_a_rank_have_their_numbers_in_mods() -> None:
    (q, k, v), score_mod, mask_mod = make_case()
    lengths = torch.tensor(LENGTHS, dtype=torch.int32)
    mods = {"score_mod": score_mod, "block_mask": mask_mod}
    o, lse = attention_with_kv_cache(q, k, v, cache_seqlens=lengths, causal=True, **mods, **OPTIONS)
    for rank in (0, 1):
        queries, keys, values = q[:, :, 2 * rank : 2 * rank + 2], k[:, :, rank : rank + 1], v[:, :, rank : rank + 1]
        split = {"cache_seqlens": lengths, "total_seqlens": lengths, "first_head": 2 * rank}
        own, own_lse = attention_with_sharded_cache(queries, keys.contiguous(), values.contiguous(), None, **split, **mods, **OPTIONS)
        torch.testing.assert_close(own, o[:, :, 2 * rank : 2 * rank + 2], atol=0.01, rtol=0.01)
        torch.testing.assert_close(own_lse, lse[:, 2 * rank : 2 * rank + 2], atol=1e-4, rtol=1e-4)


@given(st.lists(st.integers(0, 12), min_size=1, max_size=3), st.integers(0, 4), st.sampled_from(["NHD", "HND"]), st.booleans())
def test_new_tokens_are_on_the_rank_that_holds_their_numbers(totals: list[int], count: int, layout: str, paged: bool) -> None:
    """Three ranks with room for 4, 6 and 8 tokens hold together what one cache would, in pages of two tokens too."""
    lengths, before, rooms = torch.tensor(totals, dtype=torch.int32), 0, (4, 6, 8)
    k, v = torch.randn(len(totals), count, 2, 3), torch.randn(len(totals), count, 2, 1)
    for room in rooms:
        caches = [torch.randn(len(totals), room, 2, d) for d in (3, 1)]
        expected = [cache.clone() for cache in caches]
        table, pages = None, caches
        if paged:
            table = torch.randperm(len(totals) * room // 2, dtype=torch.int32).view(len(totals), -1)
            pages = [torch.empty(len(totals) * room // 2, 2, 2, x.shape[3]) for x in caches]
            for page, x in zip(pages, caches, strict=True):
                page[table.flatten().long()] = x.reshape(-1, 2, 2, x.shape[3])
        for b, total in enumerate(totals):
            for i in range(count):
                if before <= total + i < before + room:
                    for cache, x in zip(expected, (k, v), strict=True):
                        cache[b, total + i - before] = x[b, i]
            if table is not None:  # of pages that hold no token and get none, the table may say anything
                used = min(max(total + count - before, 0), room)
                table[b, -(-used // 2) :] = table[0, 0]
        given_caches = [x if layout == "NHD" else x.transpose(1, 2).contiguous() for x in pages]
        starts = torch.full_like(lengths, before)
        found = append_to_sharded_cache(*given_caches, k, v, starts=starts, total_seqlens=lengths, page_table=table, layout=layout)
        used = [min(max(total + count - before, 0), room) for total in totals]
        for cache, x in zip(given_caches, expected, strict=True):
            cache = cache if layout == "NHD" else cache.transpose(1, 2)
            cache = cache if table is None else cache[table.long()].flatten(1, 2)
            assert all(of[:n].equal(by[:n]) for of, by, n in zip(cache, x, used if paged else [room] * len(used), strict=True))
        assert found.tolist() == used
        before += room


def test_pages_that_are_none_are_refused() -> None:
    cache, new, zeros = torch.zeros(2, 2, 1, 16), torch.zeros(1, 1, 1, 16), torch.zeros(1, dtype=torch.int32)
    table = torch.tensor([[2]], dtype=torch.int32)
    with pytest.raises(CuirError, match="found page 2"):
        append_to_sharded_cache(cache, cache, new, new, starts=zeros, total_seqlens=zeros, page_table=table)


def test_more_new_tokens_than_room_are_refused() -> None:
    cache, new, zeros = torch.zeros(1, 2, 1, 16), torch.zeros(1, 3, 1, 16), torch.zeros(1, dtype=torch.int32)
    with pytest.raises(CuirError, match="room for 2 tokens"):
        append_to_sharded_cache(cache, cache, new, new, starts=zeros, total_seqlens=zeros)


def test_a_sequence_has_its_bits_in_any_batch() -> None:
    """Compare a batch, whose heads have two CTAs each, with single sequences, whose heads have eight."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(16, n, h, 16).bfloat16() for n, h in ((2, 4), (600, 2), (600, 2)))
    lengths = torch.linspace(600, 40, 16).int()

    def call(b: slice) -> torch.Tensor:
        starts = torch.full_like(lengths, 64)[b]
        split = {"cache_seqlens": lengths[b], "starts": starts, "total_seqlens": lengths[b] + starts}
        mesh, some = None, [x[b] for x in (q, k, v)]
        return attention_with_sharded_cache(*some, mesh, batch_invariant=True, **split, **{**OPTIONS, "return_lse": False})

    together = call(slice(0, 16))
    assert all(torch.equal(together[b : b + 1], call(slice(b, b + 1))) for b in (0, 3, 15))
