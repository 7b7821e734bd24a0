"""Contenders in turns: order, medians' input, those that fail; without a GPU the clock is given."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuir.performance.timing.timing_protocol import MAX_CALLS, MIN_CALLS, ROUND_MS, plan_round, time_in_turns


def test_every_round_times_each_once() -> None:
    order: list[str] = []
    begun: list[str] = []
    calls = {name: (lambda name=name: order.append(name)) for name in "abc"}
    times, failed = time_in_turns(calls, 2, lambda call: call() or float(len(order)), begins=begun.append)
    assert order == begun == list("abcacb") and times == {"a": [1, 4], "b": [2, 6], "c": [3, 5]} and not failed


@given(st.integers(3, 8), st.integers(2, 5))
def test_nobody_always_follows_the_same_one(contenders: int, rounds: int) -> None:
    order: list[int] = []
    calls = {str(i): (lambda i=i: order.append(i)) for i in range(contenders)}
    time_in_turns(calls, rounds, lambda call: call() or 1.0)
    turns = [order[i : i + contenders] for i in range(0, len(order), contenders)]
    assert all(sorted(turn) == list(range(contenders)) for turn in turns)
    for i in range(contenders):
        assert len({turn[turn.index(i) - 1] for turn in turns}) > 1


def test_a_contender_that_fails_is_left_out() -> None:
    def fail() -> None:
        raise RuntimeError("no kernel for this\nand a long story")

    times, failed = time_in_turns({"good": lambda: None, "bad": fail}, 2, lambda call: call() or 1.0)
    assert times == {"good": [1.0, 1.0]} and failed == {"bad": "no kernel for this"}


def test_a_lost_context_ends_the_measurement() -> None:
    def fail() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="illegal"):
        time_in_turns({"bad": fail, "next": lambda: None}, 1, lambda call: call() or 1.0)


def test_what_compilers_raise_is_a_failure_too() -> None:
    class CompilerError(Exception):
        pass

    def fail() -> None:
        raise CompilerError

    assert time_in_turns({"bad": fail}, 1, lambda call: call() or 1.0) == ({}, {"bad": "CompilerError"})


def test_the_slow_of_a_family_are_timed_once() -> None:
    speed = {"ours a": 1.0, "ours b": 1.04, "ours c": 1.1, "peer": 3.0}
    order: list[str] = []
    calls = {name: (lambda name=name: order.append(name) or speed[name]) for name in speed}
    times, _ = time_in_turns(calls, 3, lambda call: call(), lambda name: name.split()[0])
    assert {n: len(t) for n, t in times.items()} == {"ours a": 3, "ours b": 3, "ours c": 1, "peer": 3}
    assert order[:4] == list(speed) and sorted(order[4:]) == ["ours a"] * 2 + ["ours b"] * 2 + ["peer"] * 2


def test_a_family_whose_best_fails_later_goes_on() -> None:
    turns = iter(range(10))

    def fails_later() -> float:
        if next(turns):
            raise RuntimeError("no more")
        return 1.0

    times, failed = time_in_turns({"a 1": fails_later, "a 2": lambda: 1.02}, 3, lambda call: call(), lambda name: name[0])
    assert failed == {"a 1": "no more"} and times == {"a 2": [1.02, 1.02, 1.02]}


@given(st.floats(0, 1e4))
def test_a_round_takes_the_same_time_for_all(each: float) -> None:
    warm, count = plan_round(each)
    assert MIN_CALLS <= count <= MAX_CALLS and 0 <= warm <= MAX_CALLS
    if ROUND_MS / MAX_CALLS <= each <= ROUND_MS / (4 * MIN_CALLS):  # neither too many calls nor too few
        assert (warm + count + MIN_CALLS) * each <= ROUND_MS and (warm + count + MIN_CALLS + 2) * each >= ROUND_MS
