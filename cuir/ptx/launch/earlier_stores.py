"""Stores of the launch before a launch that may begin before its end (programmatic dependent launch).

Until griddepcontrol.wait they race with what the later launch does there. Engines see them behind a proxy fence alone.
Reads of the earlier launch, and launches before it, count as over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..machine.findings import EarlierStore, describe_asynchronous, locate
from ..machine.lane_machine import SharedState
from ..machine.memories import IN_FLIGHT, Array
from ..machine.program import Program
from .device_memory import Allocation


@dataclass(frozen=True)
class EarlierLaunch:
    """A launch that has run, and where tensors lay in its memory."""

    program: Program
    state: SharedState
    allocations: Sequence[Allocation]


def mark_earlier_stores(state: SharedState, allocations: Sequence[Allocation], earlier: EarlierLaunch) -> None:
    """Mark in the shadow of a launch that has not begun what the launch before has stored."""
    shadow, old = state.global_memory.shadow, earlier.state.global_memory.shadow
    assert shadow is not None and old is not None
    if shadow.shift > old.shift:
        shadow.split()
    stores: dict[tuple[int, bool], int] = {}
    found: list[EarlierStore] = []
    for a in allocations:
        for b in earlier.allocations:
            low, high = max(_find_host(a), _find_host(b)), min(_find_host(a) + a.size, _find_host(b) + b.size)
            if a.host is None or b.host is None or low >= high:
                continue
            places = np.arange(low - _find_host(b) + b.start, high - _find_host(b) + b.start)
            ticks, writers = old.written[places >> old.shift], old.writer[places >> old.shift]
            ticks = np.where(ticks >= IN_FLIGHT, ticks - IN_FLIGHT, ticks)
            fenced = _are_fenced(earlier.state, writers, ticks)
            for tick in np.unique(ticks[ticks > 0]).tolist():
                place = earlier.state.places[tick]
                if place < 0:
                    continue
                by_engine = describe_asynchronous(earlier.program.instructions[place][0].op)[2] == "async"
                for seen in (False, True):
                    mine = (ticks == tick) & ((fenced | by_engine) == seen)
                    if not mine.any():
                        continue
                    if (place, seen) not in stores:
                        found.append(EarlierStore(locate(earlier.program, place, earlier.state.ptx_source), seen))
                        state.places.append(-len(found))
                        stores[place, seen] = len(state.places) - 1
                    entries = (places[mine] - b.start + a.start + _find_host(b) - _find_host(a)) >> shadow.shift
                    shadow.written[entries], shadow.writer[entries] = stores[place, seen], -1  # the machine knows its number
    state.earlier = found


def _find_host(a: Allocation) -> int:
    """Return the host's address of an allocation's first byte."""
    return 0 if a.host is None else a.host.__array_interface__["data"][0]


def _are_fenced(state: SharedState, writers: Array, ticks: Array) -> Array:
    """Return which stores the storing thread has put a proxy fence behind."""
    fenced = np.zeros(len(ticks), np.bool_)
    for threads, tick in state.fences:
        fenced |= (ticks < tick) & np.isin(writers, threads)
    return fenced
