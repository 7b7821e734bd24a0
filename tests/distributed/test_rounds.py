"""Rounds of a rank: each needed pair in one part, launches of neighbouring tokens, mods that calls find again."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from cuir.distributed.kept_pairs import balance_sequence, count_pairs
from cuir.distributed.plans import find_needed_keys
from cuir.distributed.rounds import MOST_PARTS, Part, Rounds, ShiftedMods, _Sum, list_rounds
from cuir.distributed.shards import Shards, Span, join_spans, merge_spans, shard_evenly
from cuir.spec.specification import Lengths


def causal(b, h, q, k):  # type: ignore[no-untyped-def]
    return q >= k


def list_all(shards: Shards, rank: int, single: bool) -> Rounds:
    kept = count_pairs(causal, Lengths(1, 1, 1, shards.length, shards.length), "cpu", block=2)
    return list_rounds(find_needed_keys(kept, shards, shards, single), shards, rank, single)


@given(st.integers(8, 40), st.integers(1, 4), st.booleans(), st.integers(1, 2))
def test_parts_compute_each_kept_pair_once(length: int, ranks: int, single: bool, block: int) -> None:
    stripes = Shards(tuple(tuple(Span(i, min(i + 1, length)) for i in range(rank, length, ranks)) for rank in range(ranks)))
    for shards in (balance_sequence(causal, length, ranks, block=block), stripes):
        for rank in range(ranks):
            rounds, queries = list_all(shards, rank, single), shards.positions(rank, "cpu")
            times = torch.zeros(len(queries), length, dtype=torch.int32)
            for step in rounds.steps:
                keys = join_spans(step.keys, "cpu")
                assert step.local or keys.equal(keys.sort().values)
                for part in step.parts:
                    rows, columns = torch.arange(*part.queries), keys[slice(*part.keys)].long()
                    times[rows.view(-1, 1), columns] += 1
                    if part.query_spans is not None and part.key_spans is not None:
                        assert join_spans(part.query_spans, "cpu").equal(queries[slice(*part.queries)])
                        assert join_spans(part.key_spans, "cpu").equal(keys[slice(*part.keys)])
            assert (times[queries.view(-1, 1) >= torch.arange(length)] == 1).all() and times.max() <= 1


def test_balanced_shards_launch_neighbouring_tokens() -> None:
    shards = balance_sequence(causal, 64, 2, block=4)
    parts = [part for rank in range(2) for step in list_all(shards, rank, True).steps for part in step.parts]
    assert [(p.query_spans, p.key_spans) for p in parts] == [
        (((16, 48),), ((0, 48),)),
        (((0, 16),), ((0, 16),)),
        (((48, 64),), ((0, 64),)),
    ]


def test_many_spans_are_one_launch() -> None:
    stripes = Shards(tuple(tuple(Span(i, i + 2) for i in range(2 * rank, 64, 4)) for rank in range(2)))
    parts = list_all(stripes, 0, True).steps[0].parts
    assert len(stripes.spans[0]) > MOST_PARTS and len(parts) == 1 and parts[0].query_spans == stripes.spans[0]


@given(st.integers(8, 40), st.integers(2, 4), st.booleans(), st.integers(1, 3))
def test_each_message_is_what_the_other_rank_expects(length: int, ranks: int, single: bool, width: int) -> None:
    stripes = Shards(tuple(tuple(Span(i, min(i + width, length)) for i in range(n * width, length, ranks * width)) for n in range(ranks)))
    for shards in (balance_sequence(causal, length, ranks, block=2), stripes):
        rounds = [list_all(shards, rank, single) for rank in range(ranks)]
        sent = {n: [] for n in range(ranks * ranks)}
        expected = {n: [] for n in range(ranks * ranks)}
        for rank, of in enumerate(rounds):
            held = shards.positions(rank, "cpu").tolist()
            for step in of.steps:
                keys = join_spans(step.keys, "cpu").tolist()
                assert all(held[slice(*at)] == keys[slice(*place)] for at, place in step.own)
                covered = sorted([place for _, place in step.own] + [p for places in step.receives.values() for p in places])
                assert step.local or merge_spans(covered) == ((Span(0, len(keys)),) if keys else ())
                for other, places in step.sends.items():
                    sent[rank * ranks + other] += [held[slice(*at)] for at in places]
                for other, places in step.receives.items():
                    expected[other * ranks + rank] += [keys[slice(*place)] for place in places]
        assert sent == expected and all(x for messages in sent.values() for x in messages)


def test_what_needs_no_other_rank_is_computed_first() -> None:
    """For a window, most queries of each rank come first; for causal shards, the first tokens of the rank that has them."""
    window = count_pairs(lambda b, h, q, k: (q >= k) & (q - k < 5), Lengths(1, 1, 1, 64, 64), "cpu", block=4)
    even = shard_evenly(64, 2)
    local, away = list_rounds(find_needed_keys(window, even, even, True), even, 1, True).steps
    assert [(p.query_spans, p.key_spans) for p in local.parts] == [((Span(36, 64),), (Span(32, 64),))] and [
        p.query_spans for p in away.parts
    ] == [(Span(32, 36),)]
    assert local.local and away.keys == (Span(28, 36),) and away.receives == {0: (Span(0, 4),)}
    first, last = list_all(balance_sequence(causal, 64, 2, block=4), 1, True).steps
    assert first.parts[0].query_spans == (Span(0, 16),) and last.parts[0].query_spans == (Span(48, 64),)


def test_a_mod_is_found_again_and_another_is_not() -> None:
    mods, sizes, device = ShiftedMods(), Lengths(1, 1, 1, 8, 8), torch.device("cpu")
    part = Part(Span(0, 4), Span(0, 8), (Span(4, 8),), (Span(0, 8),))
    other = lambda b, h, q, k: q <= k  # noqa: E731
    shifted = mods.get(causal, False, sizes, 0, part, device)
    assert mods.get(causal, False, sizes, 0, part, device) is shifted
    assert not mods.get(other, False, sizes, 0, part, device)(0, 0, torch.tensor(0), torch.tensor(0))
    assert mods.get(causal, False, sizes, 0, part, device)(0, 0, torch.tensor(0), torch.tensor(4))


def test_learned_tensors_are_those_of_now() -> None:
    mods, bias, other = ShiftedMods(), torch.zeros(4), torch.zeros(4, requires_grad=True)
    holder = {"bias": bias}
    score_mod = lambda score, b, h, q, k: score + holder["bias"][h]  # noqa: E731
    assert mods.list_learned(None, score_mod) == mods.list_learned(None, score_mod) == []
    bias.requires_grad_()
    assert [id(t) for t in mods.list_learned(None, score_mod)] == [id(bias)]
    bias.requires_grad_(False)
    assert mods.list_learned(None, score_mod) == mods.list_learned(causal, None) == mods.list_learned(None, score_mod) == []
    holder["bias"] = other
    assert [id(t) for t in mods.list_learned(None, score_mod)] == [id(other)]


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(1, 8)), max_size=5))
def test_sums_are_rounded_once_for_each_pair(places: list[tuple[int, int]]) -> None:
    like = torch.zeros(1, 1, 8, 1, dtype=torch.bfloat16)
    total, expected = _Sum(like), torch.zeros(1, 1, 8, 1)
    for i, (start, count) in enumerate(places):
        g = torch.full((1, 1, min(count, 8 - start), 1), 1.0 + i / 128, dtype=torch.bfloat16)
        expected[:, :, start : start + count] += g.float()
        total.add(Span(start, start + g.shape[2]), g)
    assert total.compute().equal(expected.bfloat16())
