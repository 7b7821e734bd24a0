"""Traces: work of workers and engines over logical time, for trace viewers and pictures.

A trace never changes a run. Cost model, in cycles of a multiprocessor of an H200 (rates from NVIDIA's tuning guide and
programming guide): a product takes R*C*K / 2048 (multiply-adds) on the tensor cores; a bulk copy takes 600 and its
bytes / 32 on the copy engine; elementwise work on a tile takes elements / 128 an operation, exp2, log2 and tanh
elements / 16.

Asynchronous accesses of a recorded run: from their issue until a worker has waited for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..checking.checked import Checked
from ..ops.expressions import traits
from ..syntax.nodes import Binary, Call, Expr, Unary
from ..syntax.types import TileType
from ..syntax.walk import walk
from ..text.diagnostics import Diagnostic
from ..text.notebook import ShownInNotebooks
from ..text.source import Source

PRODUCT_RATE, COPY_RATE, COPY_LATENCY, LANE_RATE, SPECIAL_RATE = 2048, 32, 600, 128, 16
BLOCKED_SHARE = 0.25  # how far a wait that never ends is drawn beyond all others, as a share of the run
FAULT_SHARE = 0.01  # the width of another fault


@dataclass(frozen=True)
class Event:
    """An interval of a track; `start` and `length` in cycles.

    `kind`: work, wait, product, copy, store, blocked, fault, or access (the earlier one of a race, by a worker).
    `actor`, `access`: of an engine's work, its name in reports and what it "may read" or "may write".
    """

    track: str
    name: str
    kind: str
    start: float
    length: float
    line: int
    actor: str = ""
    access: str = ""


@dataclass(frozen=True)
class SyncStep:
    """A step of synchronisation: what a worker or an engine did to a barrier or an engine.

    Steps stand in the order of the run.

    Attributes:
        actor: Worker, or the copy that lands.
        kind: arrive, issue, land, wait (once it has returned), sync, product, store, complete (of an engine's work, by
            a wait for its group) or blocked.
        target: Barrier or engine concerned; the worker that waited.
        phase: Of the barrier; -1 where there is none.
        count: Arrivals of a phase of the barrier.
        value: Bytes that an arrival expects, or that a copy brings.
        cycle: Time of the actor by the cost model.
        engine: Name of the work that a worker issues to an engine.
        access: What that work "may read" or "may write".
    """

    actor: str
    kind: str
    target: str
    line: int
    cycle: float
    phase: int = -1
    count: int = 0
    value: int = 0
    engine: str = ""
    access: str = ""


@dataclass
class Trace(ShownInNotebooks):
    """Events of the first batch of CTAs that a run interprets, in the order of recording.

    Passed as `run(..., trace=Trace())`.

    Attributes:
        events: Intervals of workers and engines.
        sync_steps: Steps of synchronisation.
        idle_since: End of each worker's last wait, where the current stretch of work began.
        tick: Machine's tick of the last barrier event in `sync_steps`.
        fault: Fault that ended the run.
        source: Text of the kernel that ran.
    """

    html_renderer = "pages.notebook_forms:render_recorded_run"

    events: list[Event] = field(default_factory=list)
    idle_since: dict[str, float] = field(default_factory=dict)
    sync_steps: list[SyncStep] = field(default_factory=list)
    tick: int = 0
    fault: Diagnostic | None = None
    source: Source | None = None

    def __repr__(self) -> str:
        tracks, end = {e.track for e in self.events}, max((e.start + e.length for e in self.events), default=0.0)
        return f"Trace({len(self.events)} events of {len(tracks)} workers and engines, {len(self.sync_steps)} steps, {end:,.0f} cycles)"

    # ---- recording
    def record_wait(self, track: str, start: float, end: float, name: str, line: int) -> None:
        """Record a worker's wait from `start` to `end`, and its work since the wait before."""
        since = self.idle_since.get(track, 0.0)
        if start > since:
            self.events.append(Event(track, "work", "work", since, start - since, line))
        if end > start:
            self.events.append(Event(track, name, "wait", start, end - start, line))
        self.idle_since[track] = end

    def record_blocked(self, track: str, start: float, name: str, line: int) -> None:
        """Record that a worker waits from `start` for ever; drawn a little beyond the last event."""
        end = max((e.start + e.length for e in self.events if e.kind != "blocked"), default=0.0)
        self.record_wait(track, start, start, name, line)
        self.events.append(Event(track, name, "blocked", start, max(end, start) + max(BLOCKED_SHARE * end, COPY_LATENCY) - start, line))

    def busy(self, event: Event) -> None:
        """Record work of an engine."""
        self.events.append(event)

    # ---- output
    def chrome(self) -> dict[str, Any]:
        """Return the trace in Chrome's JSON format: a cycle is shown as a nanosecond."""
        tracks = list(dict.fromkeys(e.track for e in self.events))
        names = [{"ph": "M", "pid": 0, "tid": i, "name": "thread_name", "args": {"name": t}} for i, t in enumerate(tracks)]
        spans = [
            {
                "ph": "X",
                "pid": 0,
                "tid": tracks.index(e.track),
                "name": e.name,
                "cat": e.kind,
                "ts": e.start / 1000,
                "dur": e.length / 1000,
                "args": {"line": e.line},
            }
            for e in self.events
        ]
        return {"traceEvents": names + spans, "displayTimeUnit": "ns"}


def estimate_cost(e: Expr, checked: Checked) -> float:
    """Estimate the cycles of the elementwise work of an expression."""
    total = 0.0
    for n in walk(e):
        if not isinstance(n, (Binary, Unary, Call)):
            continue
        op_traits = traits(n)
        t = checked.find_type(n.args[0] if (op_traits.reduction or op_traits.column_reduction) and isinstance(n, Call) and n.args else n)
        if isinstance(t, TileType) and (op_traits.elementwise or op_traits.reduction or op_traits.column_reduction):
            total += t.rows * t.cols / (SPECIAL_RATE if op_traits.special and isinstance(n, Call) else LANE_RATE)
    return total


@dataclass(frozen=True)
class Flight:
    """The time in which an engine may still access memory, though its bar may be over by the cost model.

    Attributes:
        event: Work of the engine.
        until: Cycle of the wait; the end of the run where there is none.
        wait_line: Line of that wait; 0 where there is none.
    """

    event: Event
    until: float
    wait_line: int = 0

    def describe(self) -> str:
        """Return who may access what until when."""
        end = f"the wait in line {self.wait_line}, cycle {self.until:,.0f}" if self.wait_line else "the end: no wait for it in this run"
        return f"{self.event.actor}, line {self.event.line}, {self.event.access} until {end}"


def find_flights(trace: Trace) -> list[Flight]:
    """Return the flights of all copies, stores and products, in the order of their issue."""
    end = max((e.start + e.length for e in trace.events), default=0.0)
    waits = find_completions(trace.sync_steps)
    flights = []
    for e in trace.events:
        if e.actor and e.access:
            wait = waits.get(e.actor)
            until = max(wait.cycle, e.start + e.length) if wait is not None else end
            flights.append(Flight(e, until, wait.line if wait is not None else 0))
    return flights


def find_completions(steps: Sequence[SyncStep]) -> dict[str, SyncStep]:
    """Return for each copy, store and product the step by which a worker knows that it is over."""
    over: dict[str, SyncStep] = {}
    landed: dict[tuple[str, int], list[str]] = {}
    for step in steps:
        if step.kind == "land":
            landed.setdefault((step.target, step.phase), []).append(step.actor)
        elif step.kind == "wait":
            for actor in landed.pop((step.target, step.phase), ()):
                over.setdefault(actor, step)
        elif step.kind == "complete":
            over.setdefault(step.actor, step)
    return over


def is_named(event: Event, fault: Diagnostic) -> bool:
    """Return True for the events of a finding.

    These are at its place, or accesses of engines and workers that it names.
    """
    at_fault = fault.span is not None and event.line == fault.span.line and event.kind in ("fault", "blocked", "work")
    return at_fault or (bool(event.actor) and event.actor in fault.message)
