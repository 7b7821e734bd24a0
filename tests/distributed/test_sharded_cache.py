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
LENGTHS, SPLIT = [13, 5], 8  # tokens of the sequences; the first rank holds as many of each


def make_case() -> tuple[list[torch.Tensor], object, object]:
    """Return q, keys and values of the whole cache, a score_mod and a mask_mod."""
    torch.manual_seed(0)
    tensors = [torch.randn(2, n, h, 16, dtype=torch.bfloat16) for n, h in ((2, 4), (16, 2), (16, 2))]
    slopes = torch.linspace(0.1, 0.4, 4)
    score_mod = lambda score, b, h, q, k: score - slopes[h] * k  # noqa: E731
    return tensors, score_mod, lambda b, h, q, k: k != 3


def compare_tokens() -> list[float]:
    """Compare a cache spread by tokens, causal, with a sink."""
    (q, k, v), score_mod, mask_mod = make_case()
    lengths, sink = torch.tensor(LENGTHS, dtype=torch.int32), torch.linspace(-1.0, 1.0, 4)
    mods = {"score_mod": score_mod, "block_mask": mask_mod, "sink": sink}
    o, lse = attention_with_kv_cache(q, k, v, cache_seqlens=lengths, causal=True, **mods, **OPTIONS)
    first = SPLIT * dist.get_rank()
    k, v = (x[:, first : first + SPLIT].contiguous() for x in (k, v))
    split = {"cache_seqlens": (lengths - first).clamp(0, SPLIT), "starts": torch.full_like(lengths, first), "total_seqlens": lengths}
    mesh = init_device_mesh("cpu", (2,))
    own, own_lse = attention_with_sharded_cache(q, k, v, mesh, **split, **mods, **OPTIONS)
    everyone = [torch.empty_like(own) for _ in range(2)]
    dist.all_gather(everyone, own)
    return [float((own - o).abs().max()), float((own_lse - lse).abs().max()), float((everyone[0] != everyone[1]).sum())]


def test_tokens_on_two_ranks_are_merged() -> None:
    for differences in run_ranks(2, compare_tokens):
        assert isinstance(differences, list), differences
        assert differences[0] < 0.02 and differences[1] < 1e-3 and differences[2] == 0


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


@given(st.lists(st.integers(0, 12), min_size=1, max_size=3), st.integers(0, 4), st.sampled_from(["NHD", "HND"]))
def test_new_tokens_are_on_the_rank_that_holds_their_numbers(totals: list[int], count: int, layout: str) -> None:
    """Three ranks with room for 4, 5 and 7 tokens hold together what one cache would."""
    lengths, before, rooms = torch.tensor(totals, dtype=torch.int32), 0, (4, 5, 7)
    k, v = torch.randn(len(totals), count, 2, 3), torch.randn(len(totals), count, 2, 1)
    for room in rooms:
        caches = [torch.randn(len(totals), room, 2, d) for d in (3, 1)]
        expected = [cache.clone() for cache in caches]
        for b, total in enumerate(totals):
            for i in range(count):
                if before <= total + i < before + room:
                    for cache, x in zip(expected, (k, v), strict=True):
                        cache[b, total + i - before] = x[b, i]
        given_caches = [x if layout == "NHD" else x.transpose(1, 2).contiguous() for x in caches]
        starts = torch.full_like(lengths, before)
        found = append_to_sharded_cache(*given_caches, k, v, starts=starts, total_seqlens=lengths, layout=layout)
        for cache, x in zip(given_caches, expected, strict=True):
            assert (cache if layout == "NHD" else cache.transpose(1, 2)).equal(x)
        assert found.tolist() == [min(max(total + count - before, 0), room) for total in totals]
        before += room


def test_more_new_tokens_than_room_are_refused() -> None:
    cache, new, zeros = torch.zeros(1, 2, 1, 16), torch.zeros(1, 3, 1, 16), torch.zeros(1, dtype=torch.int32)
    with pytest.raises(CuirError, match="room for 2 tokens"):
        append_to_sharded_cache(cache, cache, new, new, starts=zeros, total_seqlens=zeros)
