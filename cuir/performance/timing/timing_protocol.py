"""The protocol of timing: medians of CUDA events with a cold L2 cache, contenders in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch

Call = Callable[[], object]
Outputs = torch.Tensor | tuple[torch.Tensor, ...]  # O, or O and more
AttentionCall = Callable[[], Outputs]
C = TypeVar("C", bound=Call)
FLUSH_BYTES = 256 * 2**20  # five times the L2 cache of an H200
ROUND_MS = 150.0  # milliseconds of a round for each contender, whatever its speed
WARM_UP_SHARE, MIN_CALLS, MAX_CALLS = 0.25, 3, 1000  # share of a round that warms the clocks up; least and most timed calls
DROP_RATIO = 1.05  # a contender this much slower than the best of its family is dropped


def median_ms(call: Call, milliseconds: float = ROUND_MS) -> float:
    """Return the median milliseconds of a call over as many calls as fit.

    The L2 cache is overwritten before each (as triton.testing.do_bench does).
    """
    call()
    torch.cuda.synchronize()
    began = time.perf_counter()
    time_calls(call, 3)
    warm, count = plan_round((time.perf_counter() - began) * 1e3 / 3, milliseconds)
    for _ in range(warm):
        call()
    return statistics.median(time_calls(call, count))


def time_calls(call: Call, count: int) -> list[float]:
    """Return the milliseconds of each of `count` calls; the L2 cache is overwritten before each."""
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(count)]
    for start, stop in events:
        flush.zero_()
        start.record()
        call()
        stop.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(stop) for start, stop in events]


def plan_round(call_ms: float, milliseconds: float = ROUND_MS) -> tuple[int, int]:
    """Return (calls to warm up, calls to time) of a contender that takes `call_ms` milliseconds a call.

    `call_ms` includes the time between calls.
    """
    call_ms = max(call_ms, 1e-3)
    warm = min(MAX_CALLS, int(WARM_UP_SHARE * milliseconds / call_ms))
    return warm, min(MAX_CALLS, max(MIN_CALLS, int((1 - WARM_UP_SHARE) * milliseconds / call_ms) - MIN_CALLS))


def time_in_turns(
    calls: Mapping[str, C],
    rounds: int,
    measure: Callable[[C], float] = median_ms,
    family: Callable[[str], str] = str,
    begins: Callable[[str], None] = lambda name: None,
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Time the contenders once a round, as the GPU runs at its power limit and drifts.

    Each round begins with another contender, and every second one runs backwards: the previous contender decides how warm
    the GPU is, so none always follows the same one.

    Args:
        calls: Contenders by name.
        rounds: Number of rounds.
        measure: Returns the milliseconds of a call.
        family: Maps a name to its family (settings of one kernel). Members that the first round shows to be slower than the
            family's best are timed in that round only.
        begins: Called with the name of each contender before its turn.

    Returns: Times by name, and the reasons why contenders failed.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    failed: dict[str, str] = {}
    for turn in range(rounds):
        best: dict[str, float] = {}
        for name, measured in times.items():
            if measured and name not in failed:
                best[family(name)] = min(measured[0], best.get(family(name), measured[0]))
        for name, call in order_turn(list(calls.items()), turn, rounds):
            if name in failed or (turn and times[name][0] > DROP_RATIO * best[family(name)]):
                continue
            begins(name)
            try:
                times[name].append(measure(call))
            except Exception as error:  # PyTorch's compilers raise errors of any type
                raise_if_lost(error)
                failed[name] = describe_error(error)
    return {name: t for name, t in times.items() if t and name not in failed}, failed


def order_turn(order: list[tuple[str, C]], turn: int, rounds: int) -> list[tuple[str, C]]:
    """Return the order of a round."""
    first = turn * len(order) // rounds
    order = order[first:] + order[:first]
    return order[::-1] if turn % 2 else order


def capture_graph(call: Call) -> Call:
    """Capture a call that has run before in a CUDA graph, so that launches on the host are not timed.

    A call that cannot be captured is returned as it is.
    """
    try:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # a first call on another stream may allocate
            call()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = call()
    except Exception:  # a capture forbids many operations
        torch.cuda.synchronize()  # raises if the context is lost
        return call

    def replay() -> object:
        graph.replay()
        return result

    return replay


def raise_if_lost(error: Exception) -> None:
    """Raise an error again if it says that the CUDA context is lost, as all later calls would fail."""
    if "CUDA error" in str(error):
        raise error


def describe_error(error: BaseException) -> str:
    """Return why a contender did not run, in a line."""
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return "out of memory"
    lines = [line for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:160]
