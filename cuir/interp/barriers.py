"""State of barriers: phases, arrivals, bytes, and a log of what happened, for reports. What an arrival or a wait does to it is protocol.py's.

Invariant: phases 0 .. phase-1 of an mbarrier are over, and its log reaches back to the end of KEPT phases or to its beginning.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..text.plurals import count_noun
from ..text.source import Span
from .clocks import Clock
from .state import State

KEPT = 6  # phases of a barrier that its log reaches back


class Event:
    """Something that happened at a barrier, for reports: never changed but for the end of the log, so that the parts of a batch share it.

    kind: "arrive" (value: bytes expected), "issue" and "land" of a copy (value: its bytes), "wait" once it has returned (value: the parity).
    phase: of the barrier, or the one that the wait meant. epoch: of the worker. tick: counts the events of a machine.
    known: the last phase that the waiter knew to be over before it waited.
    """

    __slots__ = ("before", "epoch", "kind", "known", "label", "phase", "span", "tick", "value", "worker")

    def __init__(
        self,
        before: Event | None,
        tick: int,
        kind: str,
        phase: int,
        worker: int,
        label: str,
        span: Span,
        value: int,
        epoch: int,
        known: int = 0,
    ):
        self.before, self.tick, self.kind, self.phase, self.worker, self.label, self.span = before, tick, kind, phase, worker, label, span
        self.value, self.epoch, self.known = value, epoch, known

    @property
    def at_once(self) -> bool:
        """Of a wait: whether the worker knew before that the phase was over."""
        return self.known >= self.phase


class Arrival(State):
    def __init__(self, label: str, span: Span):
        self.label, self.span = label, span


class Mbarrier(State):
    """One mbarrier of one CTA. `phase` is the number of complete phases: phases 0 .. phase-1 are over."""

    def __init__(self, text: str, entry: int, count: int, span: Span, workers: int, entries: int):
        self.text, self.entry, self.count, self.span = text, entry, count, span
        self.phase, self.pending, self.bytes = 0, count, 0
        self.expected, self.landed = 0, 0  # bytes of the current phase, for reports
        self.had_bytes = False  # of the phase before: a copy landed in it
        self.clock = Clock(workers, entries)  # joined over all arrivals: an arrival continues the release of those before it
        self.seen = self.clock.copy()  # the clock when the last phase ended: what its waiters learn
        self.waits: dict[int, Event] = {}  # worker -> its last wait
        self.came: dict[int, int] = {}  # worker -> how often it has arrived
        self.log: Event | None = None  # what happened last, and through it what before
        self.marks: list[Event | None] = []  # the ends of the last phases in the log
        self.last: Event | None = None  # arrival
        self.used_phase = -1  # the last phase that a copy landed in, and the copy
        self.user: Event | None = None
        self.time, self.seen_time = 0.0, 0.0

    def phase_meant(self, known: int, parity: int) -> int:
        """The first phase of this parity that is not before the last one known complete."""
        return known if known % 2 == parity else known + 1

    def events(self) -> list[Event]:
        """What the log holds, the last first."""
        events, event = [], self.log
        while event is not None:
            events.append(event)
            event = event.before
        return events

    def missing(self) -> str:
        """Why the current phase is not over, in words."""
        parts = [f"{self.count - self.pending} of {count_noun(self.count, 'arrival')}"]
        if self.bytes > 0:
            parts.append(f"{self.bytes} of {self.expected} bytes missing")
        elif self.bytes < 0:
            parts.append(f"{-self.bytes} bytes landed that nobody expected yet")
        return ", ".join(parts)


class Handout(State):
    """Who has taken how many units of work: under a schedule in lockstep a worker waits here until all have taken the unit before. Orders nothing."""

    def __init__(self, workers: Sequence[int], span: Span):
        self.text, self.span = "tiles", span
        self.taken = dict.fromkeys(workers, 0)

    def behind(self, units: int) -> list[int]:
        """The workers that have taken fewer."""
        return [w for w, n in self.taken.items() if n < units]

    def take(self, worker: int) -> None:
        """A worker takes its next unit, or finds that there is none."""
        self.taken[worker] += 1


class Generation(State):
    """A completed phase of a named barrier, kept until everyone who waits in it has gone on."""

    def __init__(self, clock: Clock, waiting: int, time: float):
        self.clock, self.waiting, self.time = clock, waiting, time


class NamedBarrier(State):
    """One hardware barrier of one CTA, also what `sync()` joins on: complete at `count` arrivals, of workers with `warps` warps, of which some wait."""

    def __init__(self, text: str, count: int, warps: int, span: Span | None, workers: int, entries: int):
        self.text, self.count, self.warps, self.span = text, count, warps, span
        self.warps_here = 0
        self.size = (workers, entries)
        self.generation, self.waiting = 0, 0
        self.clock = Clock(*self.size)
        self.arrivals: list[Arrival] = []
        self.came: dict[int, int] = {}  # worker -> how often it has arrived
        self.last: Arrival | None = None
        self.over: dict[int, Generation] = {}
        self.time = 0.0
