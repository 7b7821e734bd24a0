"""Who touched which bytes of shared memory, as records. What makes two of them a race is races.py's.

An access is a record on a byte region. It is done at an event (clock entry, value): a worker's epoch, or the phase of the mbarrier that a copy landed
on; an access in flight is done at no event yet, so nothing is ordered after it. Dominated records are dropped: a region holds few.
"""

from __future__ import annotations

from ..text.source import Span
from .barriers import Mbarrier
from .clocks import Clock, Event
from .memory import Intervals, covers, overlap
from .state import State


class Actor(State):
    """Who accesses: a worker now, or an engine on its behalf with the worker's knowledge at issue."""

    def __init__(self, worker: int, cta: int, label: str, clock: Clock, span: Span, what: str):
        self.worker, self.cta, self.label, self.clock, self.span, self.what = worker, cta, label, clock, span, what


class Record(State):
    def __init__(self, actor: Actor, mode: str, proxy: str, done: Event | None, text: str, awaited: str):
        self.worker, self.label, self.span, self.what = actor.worker, actor.label, actor.span, actor.what
        self.mode, self.proxy, self.done, self.text = mode, proxy, done, text
        self.awaited = awaited  # what has to be waited for before the access is over, for reports
        self.bar: Mbarrier | None = None  # that a copy lands on
        self.tick = 0  # of the machine when it was entered

    def words(self) -> str:
        return f"the {self.mode} of `{self.text}` by {self.label}"


class Region(State):
    def __init__(self, intervals: Intervals):
        self.intervals = intervals
        self.records: list[Record] = []


class Tracker(State):
    """The accesses to one CTA's shared memory."""

    def __init__(self) -> None:
        self.regions: dict[Intervals, Region] = {}
        self.near: dict[Intervals, list[tuple[Region, bool]]] = {}  # what `overlapping` found

    def overlapping(self, intervals: Intervals) -> list[tuple[Region, bool]]:
        """The regions that share a byte with this one, and whether this one covers them."""
        regions = self.near.get(intervals)
        if regions is None:
            new = self.regions.get(intervals)
            if new is None:
                new = self.regions[intervals] = Region(intervals)
                for others, known in self.near.items():  # the last of those found before, as it is of all
                    if overlap(others, intervals):
                        known.append((new, covers(others, intervals)))
            regions = [(r, covers(intervals, r.intervals)) for r in self.regions.values() if overlap(intervals, r.intervals)]
            self.near[intervals] = regions
        return regions
