"""Contenders in turns: order, medians' input, those that fail; without a GPU the clock is given."""

from __future__ import annotations

import pytest

from cuir.measure.protocol import in_turns, versions


def test_every_round_times_each_once() -> None:
    order: list[str] = []
    calls = {name: (lambda name=name: order.append(name)) for name in "abc"}
    times, failed = in_turns(calls, 2, lambda call: call() or float(len(order)))
    assert order == list("abcabc") and times == {"a": [1, 4], "b": [2, 5], "c": [3, 6]} and not failed


def test_a_contender_that_fails_is_left_out() -> None:
    def broken() -> None:
        raise RuntimeError("no kernel for this\nand a long story")

    times, failed = in_turns({"good": lambda: None, "bad": broken}, 2, lambda call: call() or 1.0)
    assert times == {"good": [1.0, 1.0]} and failed == {"bad": "no kernel for this"}


def test_a_lost_context_ends_the_measurement() -> None:
    def lost() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(RuntimeError, match="illegal"):
        in_turns({"bad": lost, "next": lambda: None}, 1, lambda call: call() or 1.0)


def test_versions_name_what_a_figure_depends_on() -> None:
    assert {"date", "device", "driver", "torch", "cuda"} <= set(versions())
