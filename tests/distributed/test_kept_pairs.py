"""Kept pairs by blocks: what is needed is exact, and balanced shards have equal work."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from cuir.distributed.kept_pairs import balance_sequence, count_pairs
from cuir.distributed.shards import Span, join_spans
from cuir.spec.specification import Lengths


def make_mask(length: int, reach: int, width: int):  # type: ignore[no-untyped-def]
    documents = (torch.arange(length) // width).int()
    return lambda b, h, q, k: (documents[q] == documents[k]) & (q >= k) & (q - k < reach)


@given(st.integers(1, 40), st.integers(1, 30), st.integers(1, 20), st.integers(0, 39), st.integers(1, 39))
def test_every_key_that_a_query_keeps_is_needed(length: int, reach: int, width: int, start: int, count: int) -> None:
    mask_mod = make_mask(length, reach, width)
    queries = (Span(min(start, length), min(start + count, length)),)
    kept = count_pairs(mask_mod, Lengths(1, 1, 1, length, length), "cpu", block=4)
    needed = set(join_spans(kept.needed_keys(queries), "cpu").tolist())
    q, k = torch.arange(length).view(-1, 1), torch.arange(length).view(1, -1)
    dense = mask_mod(0, 0, q, k)
    rows = dense[queries[0].start : queries[0].stop]
    assert set(rows.any(0).nonzero().flatten().tolist()) <= needed
    assert round(kept.count((Span(0, length),))) == int(dense.sum())
    blocks = {int(i) // 4 for i in needed}
    first, last = queries[0].start // 4 * 4, -(-queries[0].stop // 4) * 4
    assert not needed or all(dense[first:last, 4 * n : 4 * n + 4].any() for n in blocks), "a block that nothing needs is sent"


def test_causal_shards_have_equal_work() -> None:
    causal = lambda b, h, q, k: q >= k  # noqa: E731
    shards = balance_sequence(causal, 256, 4, block=8)
    kept = count_pairs(causal, Lengths(1, 1, 1, 256, 256), "cpu", block=8)
    loads = [kept.count(spans) for spans in shards.spans]
    assert max(loads) / min(loads) < 1.02 and shards.lengths == (64, 64, 64, 64)


@given(st.integers(1, 60), st.integers(1, 5), st.integers(1, 20))
def test_each_rank_has_few_spans(length: int, ranks: int, width: int) -> None:
    """All shards together have at most two cuts for each rank but one, and no rank two blocks more than another."""
    shards = balance_sequence(make_mask(length, length, width), length, ranks, block=2)
    assert sorted(i for spans in shards.spans for i in join_spans(spans, "cpu").tolist()) == list(range(length))
    assert sum(len(spans) for spans in shards.spans) <= 2 * ranks - 1
    assert max(shards.lengths) - min(shards.lengths) <= 4
