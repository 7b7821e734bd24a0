"""Plans: the cheapest method that can do the call, and what is sent."""

from __future__ import annotations

import dataclasses

import pytest

from cuir import CuirError
from cuir.distributed.kept_pairs import count_pairs
from cuir.distributed.plans import Machine, Method, ParallelProblem, make_plan
from cuir.distributed.shards import Shards, Span, shard_evenly
from cuir.spec.specification import Lengths


def make_problem(heads: int = 8, key_heads: int = 8, length: int = 64, mesh: tuple[int, ...] = (4,)) -> ParallelProblem:
    shards = shard_evenly(length, *mesh)
    return ParallelProblem(1, heads, key_heads, (128, 128), 2, mesh, shards, shards, True)


def count(mask_mod: object, length: int = 64):  # type: ignore[no-untyped-def]
    return count_pairs(mask_mod, Lengths(1, 1, 1, length, length), "cpu", block=4)  # type: ignore[arg-type]


def causal(b, h, q, k):  # type: ignore[no-untyped-def]
    return q >= k


def window(b, h, q, k):  # type: ignore[no-untyped-def]
    return (q >= k) & (q - k < 5)


def test_a_window_needs_the_end_of_the_rank_before() -> None:
    plan = make_plan(make_problem(), count(window), "ring")
    assert [need.keys for (need,) in plan.needed] == [(Span(0, 16),), (Span(12, 32),), (Span(28, 48),), (Span(44, 64),)]
    received = {e.method: e.received for e in plan.estimates}
    assert received["ring"] == received["gather"] == 4 * 8 * 256 * 2, "four keys of eight heads"


@pytest.mark.parametrize(("machine", "method"), [(Machine(bandwidth=1e6), "gather"), (Machine(flops=1e6), "heads")])
def test_the_cheapest_method_is_chosen(machine: Machine, method: Method) -> None:
    """A slow link asks for few bytes, which a window has; slow products ask for equal work, which causal heads have."""
    kept = count(window if method == "gather" else causal)
    plan = make_plan(make_problem(), kept, machine=machine)
    assert plan.method == method or (plan.method == "ring" and method == "gather")
    assert f"> {plan.method}" in plan.explain()


@pytest.mark.parametrize(
    ("method", "heads", "reason"),
    [("heads", (6, 6), "4 ranks do not divide 6"), ("mixed", (8, 8), "one dim"), ("heads", (24, 6), "key heads")],
)
def test_a_method_that_cannot_is_refused(method: Method, heads: tuple[int, int], reason: str) -> None:
    with pytest.raises(CuirError, match=reason):
        make_plan(make_problem(*heads), count(causal), method)
    assert make_plan(make_problem(*heads), count(causal)).method != method


def test_an_unknown_method_is_refused() -> None:
    with pytest.raises(CuirError, match="U413"):
        make_plan(make_problem(), count(causal), "rings")  # type: ignore[arg-type]


def test_many_launches_and_lookups_take_time() -> None:
    """A short call is bounded by its launches; that of spans which are looked up by its masks."""
    kept = count(causal)
    striped = Shards(tuple(tuple(Span(i, i + 1) for i in range(rank, 64, 4)) for rank in range(4)))
    problem = dataclasses.replace(make_problem(), queries=striped, keys=striped)
    seconds = {e.method: e.seconds for e in make_plan(problem, kept).estimates}
    assert seconds["ring"] > seconds["gather"] >= 2 * (Machine().start + Machine().call)
    slow = {e.method: e.seconds for e in make_plan(problem, kept, machine=Machine(flops=1e6)).estimates}
    assert slow["gather"] > 1.4 * slow["heads"] and make_plan(problem, kept, machine=Machine(flops=1e6)).method == "heads"
