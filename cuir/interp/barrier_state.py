"""State of barriers: phases, arrivals, bytes, and a log of events for reports.

The transitions of arrivals and waits are in protocol.py. Invariant: phases 0 .. phase-1 of an mbarrier are complete,
and its log reaches back to the end of the phase KEPT phases ago, or to its beginning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..text.phrases import count_noun
from ..text.source import Span
from . import clocks
from .clocks import Clock
from .state import State

LOG_LENGTH = 6  # phases of a barrier that its log keeps


@dataclass(slots=True, eq=False)
class Event:
    """An event at a barrier, for reports.

    Never changed but for the end of the log, so that the parts of a batch share it.

    kind: "arrive" (value: bytes expected), "issue" and "land" of a copy (value: its bytes), "wait" once it has
    returned (value: the parity). phase: of the barrier, or the one that the wait is for. epoch: of the worker. tick:
    counts the events of a machine. knowledge: the last phase that the waiter knew to be complete before it waited.
    """

    before: Event | None
    tick: int
    kind: str
    phase: int
    worker: int
    label: str
    span: Span
    value: int
    epoch: int
    knowledge: int = 0

    @property
    def event(self) -> clocks.Event:
        """The worker's epoch when this wait had returned."""
        return self.worker, self.epoch

    @property
    def at_once(self) -> bool:
        """True if the worker of this wait knew before that the phase was complete."""
        return self.knowledge >= self.phase


class Arrival(State):
    def __init__(self, label: str, span: Span):
        self.label, self.span = label, span


class Mbarrier(State):
    """One mbarrier of one CTA; `phase` is the number of complete phases, 0 .. phase-1."""

    def __init__(self, text: str, entry: int, count: int, span: Span, workers: int, entries: int):
        self.text, self.entry, self.count, self.span = text, entry, count, span
        self.phase, self.pending, self.bytes = 0, count, 0
        self.expected, self.landed = 0, 0  # bytes of the current phase, for reports
        self.had_bytes = False  # of the phase before: a copy landed in it
        # joined over all arrivals: an arrival continues the release of those before it
        self.order = Clock(workers, entries)
        self.phase_order = self.order.copy()
        self.waits: dict[int, Event] = {}  # worker -> its last wait
        self.came: dict[int, int] = {}  # worker -> number of its arrivals
        self.log: Event | None = None  # the last event, linked to those before it
        self.marks: list[Event | None] = []  # the ends of the last phases in the log
        self.last: Event | None = None  # the last arrival
        self.used_phase = -1  # the last phase that a copy landed in, and the copy
        self.user: Event | None = None
        self.time, self.seen_time = 0.0, 0.0

    def events(self) -> list[Event]:
        """Return the events of the log, the last first."""
        events, event = [], self.log
        while event is not None:
            events.append(event)
            event = event.before
        return events

    def missing(self) -> str:
        """Describe the arrivals and bytes that the current phase still lacks."""
        parts = [f"{self.count - self.pending} of {count_noun(self.count, 'arrival')}"]
        if self.bytes > 0:
            parts.append(f"{self.bytes} of {self.expected} bytes missing")
        elif self.bytes < 0:
            parts.append(f"{-self.bytes} bytes landed that nobody expected yet")
        return ", ".join(parts)


class Handout(State):
    """Queue of work items: counts of the items that each worker has taken.

    Under a schedule in lockstep a worker waits here until all have taken the previous work item. Implies no
    happens-before order.
    """

    def __init__(self, workers: Sequence[int], span: Span):
        self.text, self.span = "tiles", span
        self.counts = dict.fromkeys(workers, 0)

    def behind(self, units: int) -> list[int]:
        """Return the workers that have taken fewer than `units` work items."""
        return [w for w, n in self.counts.items() if n < units]

    def take(self, worker: int) -> None:
        """Count one work item for a worker, or its discovery that there is none."""
        self.counts[worker] += 1


class Generation(State):
    """A completed phase of a named barrier, kept until every worker that waits in it has gone on."""

    def __init__(self, order: Clock, waiting: int, time: float):
        self.order, self.waiting, self.time = order, waiting, time


class NamedBarrier(State):
    """One hardware barrier of one CTA, also the one that `sync()` joins on.

    A phase is complete at `count` arrivals, of workers with `warps` warps, of which some wait.
    """

    def __init__(self, text: str, count: int, warps: int, span: Span | None, workers: int, entries: int):
        self.text, self.count, self.warps, self.span = text, count, warps, span
        self.warps_here = 0
        self.size = (workers, entries)
        self.generation, self.waiting = 0, 0
        self.order = Clock(*self.size)
        self.arrivals: list[str] = []  # labels of the workers that have arrived in this phase
        self.came: dict[int, int] = {}  # worker -> number of its arrivals
        self.last: Arrival | None = None
        self.over: dict[int, Generation] = {}
        self.time = 0.0
