"""Barriers: phases, arrivals, bytes, and what a waiter learns. The rules are in docs/semantics.md; who blocks is the scheduler's business."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..text.source import Span
from . import causes
from .chains import KEPT
from .clocks import Clock
from .state import State

if TYPE_CHECKING:
    from .machine import Machine, Worker


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
        m: Machine,
        kind: str,
        phase: int,
        worker: int,
        label: str,
        span: Span,
        value: int,
        epoch: int,
        known: int = 0,
    ):
        m.tick += 1
        self.before, self.tick, self.kind, self.phase, self.worker, self.label, self.span = before, m.tick, kind, phase, worker, label, span
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

    def arrive(self, m: Machine, w: Worker, span: Span, expect: int = 0) -> None:
        """One arrival of a worker, adding `expect` bytes to the phase. Raises CuirError S402 (too many arrivals)."""
        n = w.number
        if self.pending == 0:
            raise causes.too_many(m, self, w, span)
        self.last = self.log = Event(self.log, m, "arrive", self.phase, n, w.label, span, expect, w.clock.known[n])
        self.came[n] = self.came.get(n, 0) + 1
        self.clock.join(w.clock)
        self.pending -= 1
        self.bytes += expect
        self.expected += expect
        self.time = max(self.time, w.time)
        self._complete(m)

    def issued(self, m: Machine, nbytes: int, worker: int, label: str, span: Span) -> None:
        """A copy that will land here was issued."""
        self.log = Event(self.log, m, "issue", self.phase, worker, label, span, nbytes, 0)

    def land(self, m: Machine, nbytes: int, worker: int, label: str, span: Span, time: float) -> tuple[int, int]:
        """Bytes of a copy arrived; returns the event at which the copy is over. Raises CuirError S403 (more bytes than expected)."""
        event = (self.entry, self.phase)
        self.user = self.log = Event(self.log, m, "land", self.phase, worker, label, span, nbytes, 0)
        self.used_phase = self.phase
        self.bytes -= nbytes
        self.landed += nbytes
        self.time = max(self.time, time)
        if self.pending == 0 and self.bytes < 0:
            raise causes.too_many_bytes(m, self, label, span)
        self._complete(m)
        return event

    def _complete(self, m: Machine) -> None:
        if self.pending or self.bytes:
            return
        over = self.phase
        self.clock.known[self.entry] = self.clock.fenced[self.entry] = over
        self.phase, self.pending = over + 1, self.count
        self.expected = self.landed = 0
        self.marks.append(self.log)
        if len(self.marks) > KEPT and (end := self.marks.pop(0)) is not None:
            end.before = None
        self.seen = self.clock.copy()
        self.seen_time = self.time
        m.changed()
        for worker, wait in self.waits.items():
            if wait.phase == over - 1 and self.seen.known[worker] < wait.epoch and m.launch.detect:
                raise causes.lapped(m, self, m.workers[worker], wait.phase, wait.span, wait)

    def phase_meant(self, known: int, parity: int) -> int:
        """The first phase of this parity that is not before the last one known complete."""
        return known if known % 2 == parity else known + 1

    def wait(self, m: Machine, w: Worker, parity: int, span: Span) -> bool:
        """True, and the worker knows the phase, if it is over. Raises CuirError S401 (a lap behind)."""
        known = w.clock.known[self.entry]
        phase = known if known % 2 == parity else known + 1
        if self.phase <= phase:
            return False
        if self.phase > phase + 1 and m.launch.detect:
            raise causes.lapped(m, self, w, phase, span, None)
        if phase >= 0:
            w.clock.join(self.seen)
        n = w.number
        self.waits[n] = self.log = Event(self.log, m, "wait", phase, n, w.label, span, parity, w.clock.known[n], known)
        return True

    def events(self) -> list[Event]:
        """What the log holds, the last first."""
        found, event = [], self.log
        while event is not None:
            found.append(event)
            event = event.before
        return found

    def missing(self) -> str:
        """Why the current phase is not over, in words."""
        parts = [f"{self.count - self.pending} of {self.count} arrivals"]
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

    def take(self, m: Machine, w: Worker) -> None:
        """A worker takes its next unit, or finds that there is none."""
        self.taken[w.number] += 1
        m.changed()


class Generation(State):
    """A completed phase of a named barrier, kept until everyone who waits in it has gone on."""

    def __init__(self, clock: Clock, waiting: int, time: float):
        self.clock, self.waiting, self.time = clock, waiting, time


class NamedBarrier(State):
    """One hardware barrier of one CTA, also what `sync()` joins on: complete at `count` arrivals, of which some wait."""

    def __init__(self, text: str, count: int, span: Span | None, workers: int, entries: int):
        self.text, self.count, self.span = text, count, span
        self.size = (workers, entries)
        self.generation, self.waiting = 0, 0
        self.clock = Clock(*self.size)
        self.arrivals: list[Arrival] = []
        self.came: dict[int, int] = {}  # worker -> how often it has arrived
        self.last: Arrival | None = None
        self.over: dict[int, Generation] = {}
        self.time = 0.0

    def arrive(self, m: Machine, w: Worker, span: Span, waits: bool) -> int:
        """One arrival; returns the generation it belongs to."""
        self.last = Arrival(w.label, span)
        self.arrivals.append(self.last)
        self.came[w.number] = self.came.get(w.number, 0) + 1
        self.clock.join(w.clock)
        self.time = max(self.time, w.time)
        self.waiting += waits
        mine = self.generation
        if len(self.arrivals) == self.count:
            if self.waiting:
                self.over[mine] = Generation(self.clock, self.waiting, self.time)
            self.generation, self.waiting, self.arrivals = mine + 1, 0, []
            self.clock = Clock(*self.size)
            m.changed()
        return mine

    def passed(self, w: Worker, generation: int) -> bool:
        """True, and the worker learns what the others did, if the generation is over."""
        found = self.over.get(generation)
        if found is None:
            return False
        w.clock.join(found.clock)
        w.time = max(w.time, found.time)
        found.waiting -= 1
        if found.waiting == 0:
            del self.over[generation]
        return True
