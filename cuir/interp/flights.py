"""Asynchronous accesses of a recorded run: from their issue until a worker has waited for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..text.diagnostics import Diagnostic
from .event_trace import Event, SyncStep, Trace


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
