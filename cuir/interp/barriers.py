"""Barriers: phases, arrivals, bytes, and what a waiter learns. The rules are in docs/semantics.md; who blocks is the scheduler's business."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..source import Span
from .clocks import Clock
from .faults import fault
from .state import State

if TYPE_CHECKING:
    from .machine import Machine, Worker


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
        self.waits: dict[int, tuple[int, int, str, Span]] = {}  # worker -> its last wait: phase, epoch, label, place
        self.arrivals: list[Arrival] = []  # of the current phase
        self.finished: list[Arrival] = []  # of the last phase that is over
        self.last: Arrival | None = None
        self.used_phase = -1  # the last phase that a copy landed in, and the copy
        self.user: Arrival | None = None
        self.time, self.seen_time = 0.0, 0.0

    def arrive(self, m: Machine, w: Worker, span: Span, expect: int = 0) -> None:
        """One arrival of a worker, adding `expect` bytes to the phase. Raises CuirError S402 (too many arrivals)."""
        self.last = Arrival(w.label, span)
        if self.pending == 0:
            raise fault(m, "S402", f"`{self.text}` takes {self.count} arrivals a phase; one more came from {w.label} while phase {self.phase} still misses {self.bytes} bytes",
                        span, "arrive for the next phase only after a wait that knows this one over; or the count is too small: it is the number of workers that arrive", [(a.label + " arrived here", a.span) for a in self.arrivals])  # fmt: skip
        self.arrivals.append(self.last)
        self.clock.join(w.clock)
        self.pending -= 1
        self.bytes += expect
        self.expected += expect
        self.time = max(self.time, w.time)
        self._complete(m)

    def land(self, m: Machine, nbytes: int, label: str, span: Span, time: float) -> tuple[int, int]:
        """Bytes of a copy arrived; returns the event at which the copy is over. Raises CuirError S403 (more bytes than expected)."""
        event = (self.entry, self.phase)
        self.used_phase, self.user = self.phase, Arrival(label, span)
        self.bytes -= nbytes
        self.landed += nbytes
        self.time = max(self.time, time)
        if self.pending == 0 and self.bytes < 0:
            raise fault(m, "S403", f"phase {self.phase} of `{self.text}` expected {self.expected} bytes, and {self.landed} landed with {label}", span,
                        "expect(nbytes(view)) for each view that is copied on this barrier",
                        [(f"{a.label} arrived here", a.span) for a in self.arrivals])  # fmt: skip
        self._complete(m)
        return event

    def _complete(self, m: Machine) -> None:
        if self.pending or self.bytes:
            return
        over = self.phase
        self.clock.known[self.entry] = self.clock.fenced[self.entry] = over
        self.phase, self.pending = over + 1, self.count
        self.expected = self.landed = 0
        finished = self.finished = self.arrivals
        self.arrivals = []
        self.seen = self.clock.copy()
        self.seen_time = self.time
        m.changed()
        for worker, (phase, epoch, label, span) in self.waits.items():
            if phase == over - 1 and self.seen.known[worker] < epoch and m.launch.detect:
                raise self.lapped(m, label, span, phase, finished)

    def phase_meant(self, known: int, parity: int) -> int:
        """The first phase of this parity that is not before the last one known complete."""
        return known if known % 2 == parity else known + 1

    def wait(self, m: Machine, w: Worker, parity: int, span: Span) -> bool:
        """True, and the worker knows the phase, if it is over. Raises CuirError S401 (a lap behind)."""
        phase = self.phase_meant(w.clock.known[self.entry], parity)
        if self.phase <= phase:
            return False
        if self.phase > phase + 1 and m.launch.detect:
            raise self.lapped(m, w.label, span, phase, [])
        if phase >= 0:
            w.clock.join(self.seen)
        self.waits[w.number] = (phase, w.clock.known[w.number], w.label, span)
        return True

    def lapped(self, m: Machine, label: str, span: Span, phase: int, finished: list[Arrival]) -> Exception:
        notes = [(f"{a.label} arrives here for phase {phase + 1}, without waiting for it", a.span) for a in finished]
        return fault(m, "S401", f"{label} waits for phase {phase} of `{self.text}`, and phase {phase + 1} can be over by then: a parity tells only two phases apart",
                     span, "whoever lets the barrier advance must first wait for something that the waiter does after this wait",
                     [*notes, (f"`{self.text}` is declared here", self.span)])  # fmt: skip

    def released(self, waiter: int, label: str) -> tuple[Span, Span] | None:
        """Where a worker waited for the last phase, and where another one, by its label, arrived for it; None if either did not."""
        phase, _, _, span = self.waits.get(waiter, (-1, 0, "", self.span))
        arrived = next((a.span for a in reversed(self.finished) if a.label == label), None)
        return (span, arrived) if arrived is not None and 0 <= phase == self.phase - 1 else None

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
        self.last: Arrival | None = None
        self.over: dict[int, Generation] = {}
        self.time = 0.0

    def arrive(self, m: Machine, w: Worker, span: Span, waits: bool) -> int:
        """One arrival; returns the generation it belongs to."""
        self.last = Arrival(w.label, span)
        self.arrivals.append(self.last)
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
