"""Processor time of a call as an idle core would take it: what else runs on the machine, or on the core's other thread, is divided out."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from cuir.runtime.garbage_collection import without_collections


@dataclass(frozen=True)
class _Item:
    name: str
    number: int


IDLE = 0.0075  # seconds that `_yardstick` takes on an idle core of the two-core machine whose figures the pages give


def _yardstick() -> None:
    """Small frozen objects, dicts and calls, as compilers in Python are made of."""
    observed: dict[str, _Item] = {}
    for i in range(6000):
        item = _Item(f"n{i % 512}", i)
        if observed.setdefault(item.name, item) != item and isinstance(item.number, int):
            observed[item.name] = item


def idle_seconds(call: Callable[[int], object], tries: int = 5) -> float:
    """The least of some tries; `call` gets the number of the try, so that it can avoid what is remembered.

    The garbage collector pauses meanwhile, as in `timeit`: its time is that of the tests before, whose objects it walks.
    """
    best = float("inf")
    for turn in range(tries):
        times = []
        for work in (_yardstick, lambda: call(turn), _yardstick):  # noqa: B023
            with without_collections():
                start = time.process_time()
                work()
                times.append(time.process_time() - start)
        before, took, after = times
        best = min(best, took * 2 * IDLE / (before + after))
    return best
