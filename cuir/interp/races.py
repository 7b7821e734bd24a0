"""Happens-before on shared memory: who touched which bytes, and whether a new access is ordered after it. Knows effects, names no primitive.

An access is a record on a byte region. It is done at an event (clock entry, value): a worker's epoch, or the phase of the mbarrier that a copy landed
on; an access in flight is done at no event yet, so nothing is ordered after it. Dominated records are dropped: a region holds few.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..text.source import Span
from .causes import of_conflict
from .clocks import Clock
from .faults import fault
from .state import State

if TYPE_CHECKING:
    from .barriers import Mbarrier
    from .machine import Machine
    from .memory import SharedRef

Intervals = tuple[tuple[int, int], ...]
Event = tuple[int, int]


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
        self.near: dict[Intervals, list[tuple[Region, bool]]] = {}  # overlapping regions, and whether this one covers them

    def _overlapping(self, intervals: Intervals) -> list[tuple[Region, bool]]:
        found = self.near.get(intervals)
        if found is None:
            if intervals not in self.regions:
                self.regions[intervals] = Region(intervals)
                self.near.clear()
            found = [(r, covers(intervals, r.intervals)) for r in self.regions.values() if overlap(intervals, r.intervals)]
            self.near[intervals] = found
        return found

    def access(self, m: Machine, actor: Actor, ref: SharedRef, mode: str, proxy: str, done: Event | None, awaited: str = "") -> Record:
        """Checks an access against all before it and enters it. Raises CuirError R401 (race) or R403 (missing fence)."""
        record = Record(actor, mode, proxy, done, ref.text, awaited)
        record.tick = m.tick
        reads = mode == "read"
        clock = actor.clock
        for region, covered in self._overlapping(ref.intervals):
            for old in region.records:
                if reads and old.mode == "read":
                    continue
                if (old.done is None or not clock.has(old.done)) and m.launch.detect:
                    raise race(m, record, old, [r for near, _ in self._overlapping(ref.intervals) for r in near.records])
                if proxy == "async" and old.proxy == "generic" and old.mode != "read" and m.launch.detect:
                    assert old.done is not None
                    if not clock.has_fenced(old.done):
                        raise unfenced(m, record, old)
            if covered and not reads:
                region.records.clear()
        home = self.regions[ref.intervals]
        if reads:  # a later read of the same worker stands for those before it
            home.records = [r for r in home.records if not (r.mode == "read" and r.worker == actor.worker and r.done is not None)]
        home.records.append(record)
        return record


def overlap(a: Intervals, b: Intervals) -> bool:
    return any(x < v and u < y for x, y in a for u, v in b)


def covers(a: Intervals, b: Intervals) -> bool:
    """Does `a` contain all bytes of `b`? Intervals of one region are disjoint and merged, so each of b lies in one of a."""
    return all(any(x <= u and v <= y for x, y in a) for u, v in b)


def race(m: Machine, new: Record, old: Record, others: Sequence[Record]) -> Exception:
    kind = "write" if old.mode == "write" and new.mode == "write" else "read" if new.mode == "read" else "overwrite"
    verb = {"write": "write", "overwrite": "write", "read": "read"}[kind]
    message = f"the {verb} of `{new.text}` by {new.label} is not ordered after {old.words()}"
    former = max((r.tick for r in others if r.worker == new.worker and r.mode == new.mode), default=-1)
    cause = of_conflict(m, new, old, former)
    return fault(m, "R401", message, new.span, cause.hint, [*cause.notes, (f"{old.what} here: it must be over before", old.span)])


def unfenced(m: Machine, new: Record, old: Record) -> Exception:
    message = (
        f"the {new.mode} of `{new.text}` by {new.label} may miss {old.words()}: an ordinary write reaches the async proxy after a fence"
    )
    rest = "" if old.worker == new.worker else " and before the barrier that orders the two"
    return fault(m, "R403", message, new.span, f"{old.label} calls fence_async() after its write{rest}", [(f"{old.what} here", old.span)])
