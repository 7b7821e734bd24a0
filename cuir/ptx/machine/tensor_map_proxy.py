"""Tensor maps that a kernel changes in memory: what orders such a change with the copies that use the map.

Copies read maps by a proxy of their own. A change is seen behind `fence.proxy.tensormap::generic.release` by who made it,
then `.acquire` with the map's address by who copies. A copy may read its map until it has landed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..isa.tensor_boxes import MAP_BYTES
from .copy_engines import EngineRead
from .findings import describe_thread, make_span, report_engine_meeting
from .operands import Array

SPACE = "tensormap"  # of proxy fences for maps


class TensorMapProxy:
    """The maps in global memory that copies of a machine use.

    Attributes:
        acquired: By the byte place of a map, the threads that acquired it, and when; and the tick of its newest change then.
        reads: By the byte place of a map, the last copy for each mbarrier, or thread of a group.
    """

    def __init__(self, machine: Any):  # the Machine, whose module imports this one
        self.machine = machine
        self.acquired: dict[int, list[tuple[Array, int, int]]] = {}
        self.reads: dict[int, dict[int, EngineRead]] = {}

    def acquire(self, slots: Array, places: Array, place: int) -> None:
        """Let threads see the changes of maps at byte places that are fenced, and known to them."""
        m = self.machine
        tick = m.next_tick(place)
        for at in np.unique(places).tolist():
            writes = self._list_writes(at)
            mine = slots[places == at]
            seen = [s for s in mine.tolist() if all(m.engines.is_fenced(s, thread, when, SPACE) for thread, when in writes)]
            if seen and writes:
                newest = max(when for _, when in writes)
                self.acquired.setdefault(at, []).append((np.array(seen), tick, newest))

    def _list_writes(self, at: int) -> list[tuple[int, int]]:
        """Return the threads that the launch has let write a map, and when."""
        shadow = self.machine.global_memory.shadow
        if shadow is None or not self.machine.launch.detect:
            return []
        entries = slice(at >> shadow.shift, (at + MAP_BYTES) >> shadow.shift)
        found = set(zip(shadow.writer[entries].tolist(), shadow.written[entries].tolist()))
        return [(thread, tick) for thread, tick in found if tick > 0]

    def use(self, slot: int, at: int, key: int, place: int) -> EngineRead:
        """Check that a copy's map is seen as it is, and note that the copy reads it.

        key: the byte place of the copy's mbarrier, or one of its thread below 0.
        """
        m = self.machine
        writes = self._list_writes(at)
        if writes:
            newest = max(writes, key=lambda w: w[1])
            acquired = (a for a in self.acquired.get(at, ()) if a[2] == newest[1])
            if not any(slot in who or m.knowledge.is_known(slot, (int(who[0]) + m.knowledge.first, tick)) for who, tick, _ in acquired):
                other = describe_thread(m, newest[0])
                m.findings.add(
                    "R403",
                    f"{describe_thread(m, slot + m.knowledge.first)} copies by a tensor map, and may miss the write to it by {other}",
                    make_span(m, place),
                    "fence.proxy.tensormap::generic.release behind the write, then .acquire of the map by who copies",
                    (("the map is written here", make_span(m, m.find_place(newest[1]))),),
                )
        read = EngineRead(np.array([slot + m.knowledge.first]), place)
        self.reads.setdefault(at, {})[key] = read
        return read

    def check_writes(self, slots: Array, places: Array, nbytes: int, place: int) -> None:
        """Check writes at byte places of global memory against copies that may read a map there."""
        m = self.machine
        for at, reads in self.reads.items():
            lanes = np.flatnonzero((places < at + MAP_BYTES) & (places + nbytes > at))
            if not len(lanes) or not reads:
                continue
            slot = int(slots[lanes[0]])
            for read in reads.values():
                thread, own = int(read.threads[0]), slot + m.knowledge.first
                if read.over is None or not (thread == own or m.knowledge.is_known(slot, (thread, read.over))):
                    report_engine_meeting(m, slot, place, "write", (thread, read.over, "read"), "global", read.place)
            reads.clear()
