"""Shards of a sequence: each token on one rank, split and joined again."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from cuir.distributed import Shards, shard_by_lengths, shard_evenly
from cuir.distributed.shards import Span, find_held, join_spans, merge_spans


@st.composite
def draw_shards(draw: st.DrawFn) -> Shards:
    """Draw shards whose ranks hold blocks of a sequence in any order."""
    sizes = draw(st.lists(st.integers(0, 5), min_size=1, max_size=8))
    ends = torch.tensor([0, *sizes]).cumsum(0).tolist()
    owners = draw(st.lists(st.integers(0, 2), min_size=len(sizes), max_size=len(sizes)))
    order = draw(st.permutations(range(len(sizes))))
    return Shards(tuple(merge_spans(Span(ends[i], ends[i + 1]) for i in order if owners[i] == rank) for rank in range(3)))


@given(draw_shards())
def test_what_is_split_is_joined_again(shards: Shards) -> None:
    x = torch.arange(shards.length).view(1, 1, -1, 1)
    parts = [shards.split(x, rank) for rank in range(shards.ranks)]
    assert [p.shape[2] for p in parts] == list(shards.lengths)
    assert shards.join(parts).equal(x)


@given(draw_shards(), st.lists(st.integers(0, 40), min_size=2, max_size=6, unique=True))
def test_places_hold_what_is_wanted(shards: Shards, ends: list[int]) -> None:
    ends.sort()
    wanted = tuple(Span(a, b) for a, b in zip(ends[::2], ends[1::2]))
    tokens = set(join_spans(wanted, "cpu").tolist())
    for rank in range(shards.ranks):
        held = shards.positions(rank, "cpu")
        places = shards.locate(rank, wanted)
        found = held[join_spans(places, "cpu")].tolist()
        assert set(found) == tokens & set(held.tolist()) and len(found) == len(set(found))
        spans, at = zip(*find_held(shards.spans[rank], wanted)) if found else ((), ())
        assert join_spans(spans, "cpu").tolist() == sorted(found) and held[join_spans(at, "cpu")].tolist() == sorted(found)


@given(st.integers(0, 40), st.integers(1, 6))
def test_even_shards_are_those_of_chunk(length: int, ranks: int) -> None:
    chunks = [len(x) for x in torch.arange(length).chunk(ranks)] if length else []
    assert list(shard_evenly(length, ranks).lengths) == (chunks + [0] * ranks)[:ranks]


def test_groups_hold_what_their_ranks_hold() -> None:
    assert shard_by_lengths((3, 0, 4, 5)).group(2).spans == ((Span(0, 3),), (Span(3, 12),))
