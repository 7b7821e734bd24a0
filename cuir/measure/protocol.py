"""The protocol of timing: medians of CUDA events with a cold L2 cache, contenders in turns. Owns no kernel."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

Call = Callable[[], Any]
FLUSH_BYTES = 256 * 2**20  # five times the L2 cache of an H200
ROUND = 150.0  # milliseconds that one contender takes in a round, whatever its speed
WARM, LEAST, MOST = 0.25, 3, 1000  # the share of a round that brings the clocks to what the card keeps up; how many calls are timed
BEHIND = 1.05  # a contender this much slower than the best of its family is not timed again


def median_ms(call: Call, milliseconds: float = ROUND) -> float:
    """Milliseconds of one call: the median over as many calls as fit, each after the L2 cache was overwritten (as triton.testing.do_bench)."""
    call()
    torch.cuda.synchronize()
    began = time.perf_counter()
    timed(call, 3)
    warm, count = calls_of_a_round((time.perf_counter() - began) * 1e3 / 3, milliseconds)
    for _ in range(warm):
        call()
    return statistics.median(timed(call, count))


def timed(call: Call, count: int) -> list[float]:
    """Milliseconds of each of `count` calls, each after the L2 cache was overwritten."""
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(count)]
    for start, stop in events:
        flush.zero_()
        start.record()
        call()
        stop.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(stop) for start, stop in events]


def calls_of_a_round(each: float, milliseconds: float = ROUND) -> tuple[int, int]:
    """(calls to warm up, calls to time) of a contender that takes `each` milliseconds a call, with what comes between calls."""
    each = max(each, 1e-3)
    warm = min(MOST, int(WARM * milliseconds / each))
    return warm, min(MOST, max(LEAST, int((1 - WARM) * milliseconds / each) - LEAST))


def in_turns(
    calls: Mapping[str, Call], rounds: int, measure: Callable[[Call], float] = median_ms, family: Callable[[str], str] = str,
    begins: Callable[[str], None] = lambda name: None,
) -> tuple[dict[str, list[float]], dict[str, str]]:  # fmt: skip
    """Times the contenders once a round, as the card runs at its power limit and drifts. Returns times and why contenders failed, by name.

    Each round begins with another contender, and every second one runs backwards: what was before a contender decides how warm the card is, so nobody
    always follows the same one.

    family: of a name; of a family (settings of one kernel) those that the first round shows to be slower than its best are timed in that round only.
    begins: told whose turn comes.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    failed: dict[str, str] = {}
    for turn in range(rounds):
        best: dict[str, float] = {}
        for name, taken in times.items():
            if taken and name not in failed:
                best[family(name)] = min(taken[0], best.get(family(name), taken[0]))
        for name, call in turned(list(calls.items()), turn, rounds):
            if name in failed or (turn and times[name][0] > BEHIND * best[family(name)]):
                continue
            begins(name)
            try:
                times[name].append(measure(call))
            except Exception as error:  # PyTorch's compilers raise whatever they meet
                raise_if_lost(error)
                failed[name] = reason(error)
    return {name: t for name, t in times.items() if t and name not in failed}, failed


def turned(order: list[tuple[str, Call]], turn: int, rounds: int) -> list[tuple[str, Call]]:
    """The order of a round."""
    first = turn * len(order) // rounds
    order = order[first:] + order[:first]
    return order[::-1] if turn % 2 else order


def as_graph(call: Call) -> Call:
    """A CUDA graph of a call that has run before, to be timed without what the host takes to launch it; the call itself where it cannot be captured."""
    try:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # what a first call on another stream prepares
            call()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kept = call()
    except Exception:  # whatever a contender does that a capture forbids
        torch.cuda.synchronize()  # raises if the context is lost
        return call

    def replay() -> object:
        graph.replay()
        return kept

    return replay


def raise_if_lost(error: Exception) -> None:
    """Raises an error that says that the CUDA context is lost, and with it all that would follow."""
    if "CUDA error" in str(error):
        raise error


def reason(error: BaseException) -> str:
    """Why a contender did not run, in a line."""
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return "out of memory"
    lines = [line for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:160]
