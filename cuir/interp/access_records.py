"""Records of accesses to bytes of shared memory; sync/accesses.py decides which pairs break a rule.

An access is a record on a byte region. It is over at an event (clock entry, value): a worker's epoch, or the phase of
the mbarrier that a copy landed on; an access in flight is over at no event yet, so nothing is ordered after it.
Dominated records are dropped: a region holds few.
"""

from __future__ import annotations

from ..sync.byte_ranges import Intervals, covers, is_overlapping
from ..text.source import Span
from .barrier_state import Mbarrier
from .clocks import Clock, Event
from .state import State


class Actor(State):
    """The party of an access: a worker now, or an engine on its behalf with the worker's clock at issue."""

    def __init__(self, worker: int, cta: int, label: str, owner: str, clock: Clock, span: Span, access: str):
        self.worker, self.cta, self.label, self.owner, self.clock, self.span, self.description = (
            worker,
            cta,
            label,
            owner,
            clock,
            span,
            access,
        )


class Record(State):
    memory, seen = "shared", True

    def __init__(self, actor: Actor, mode: str, proxy: str, completion: Event | None, text: str, awaited: str):
        self.worker, self.label, self.owner = actor.worker, actor.label, actor.owner
        self.span, self.description = actor.span, actor.description
        self.mode, self.proxy, self.completion, self.text = mode, proxy, completion, text
        self.awaited = awaited  # the wait that completes the access, for reports
        self.bar: Mbarrier | None = None  # the barrier that a copy lands on
        self.tick = 0  # the machine's tick when it was entered
        self.time = 0.0  # of its worker then, by the cost model
        self.unit = -1  # the worker's unit of work then, counted from 0 in its CTA; -1 outside of its loop over them


class Region(State):
    def __init__(self, intervals: Intervals):
        self.intervals = intervals
        self.records: list[Record] = []


class Tracker(State):
    """The accesses to one CTA's shared memory."""

    def __init__(self) -> None:
        self.regions: dict[Intervals, Region] = {}
        self.near: dict[Intervals, list[tuple[Region, bool]]] = {}  # cache of `overlapping`

    def overlapping(self, intervals: Intervals) -> list[tuple[Region, bool]]:
        """Return the regions that overlap `intervals`, each with True if `intervals` covers the region."""
        regions = self.near.get(intervals)
        if regions is None:
            new = self.regions.get(intervals)
            if new is None:
                new = self.regions[intervals] = Region(intervals)
                for region_intervals, neighbours in self.near.items():  # appended, as it is the last region
                    if is_overlapping(region_intervals, intervals):
                        neighbours.append((new, covers(region_intervals, intervals)))
            regions = [(r, covers(intervals, r.intervals)) for r in self.regions.values() if is_overlapping(intervals, r.intervals)]
            self.near[intervals] = regions
        return regions
