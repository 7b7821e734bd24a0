"""Times of workers and engines by the cost model (trace.py), entered in the trace if a run has one.

Changes nothing else. Invariant: the times of all batches are kept, for their waits; the trace shows the first.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..text.diagnostics import CuirError
from ..text.source import Span
from .access_records import Record
from .actions import Action, Copy, Product, Store
from .barrier_state import Handout, Mbarrier, NamedBarrier
from .event_trace import COPY_LATENCY, COPY_RATE, FAULT_SHARE, PRODUCT_RATE, Event, SyncStep, Trace
from .machine import Machine, Worker


def record_wait(w: Worker, start: float, name: str, span: Span, over: Sequence[Action] = ()) -> None:
    """Record the end of a worker's wait.

    Args:
        start: cycle at which the worker came to the wait.
        over: asynchronous actions that the worker waited for.
    """
    trace = w.m.launch.trace
    if trace is not None and not w.m.number:
        trace.record_wait(w.label, start, w.time, name, span.line)
        record_steps(w.m)
        if not name.startswith("wait "):  # those of mbarriers are among their events
            trace.sync_steps.append(SyncStep(w.label, "sync", name, span.line, w.time))
        trace.sync_steps += [SyncStep(a.actor.label, "complete", w.label, span.line, w.time) for a in over]


def record_steps(m: Machine) -> None:
    """Record the events of mbarriers since the last call as steps.

    A barrier's log keeps some phases only; between two calls no worker goes round a ring.
    """
    trace = m.launch.trace
    if trace is None or m.number or m.tick == trace.tick:
        return
    fresh: list[tuple[int, SyncStep]] = []
    for ring in m.barriers.values():
        for bar in ring:
            event = bar.log if isinstance(bar, Mbarrier) else None
            while event is not None and event.tick > trace.tick:
                w = m.workers[event.worker]
                cycle = bar.time if event.kind == "land" else w.time
                step = SyncStep(event.label, event.kind, bar.text, event.span.line, cycle, event.phase, bar.count, event.value)
                fresh.append((event.tick, step))
                event = event.before
    trace.sync_steps += [step for _, step in sorted(fresh, key=lambda pair: pair[0])]
    trace.tick = m.tick


def record_deadlock(m: Machine) -> None:
    """Record the waits of all workers of a machine in which nobody can go on."""
    trace = m.launch.trace
    if trace is None or m.number:
        return
    record_steps(m)
    for w in m.workers:
        if not w.finished and w.block is not None:
            barrier = w.block.barrier
            name = "next unit of work" if isinstance(barrier, Handout) else barrier.text
            since, phase = (w.started, -1) if isinstance(barrier, NamedBarrier) else (w.time, w.block.phase)
            trace.record_blocked(w.label, since, f"wait {name}", w.block.span.line)
            trace.sync_steps.append(SyncStep(w.label, "blocked", name, w.block.span.line, since, phase))


def record_fault(m: Machine, error: CuirError) -> None:
    """Record the fault that ends a run, the steps that led to it, and its place in the row of its worker."""
    trace = m.launch.trace
    if trace is None:
        return
    record_steps(m)
    fault = trace.fault = error.diagnostics[0]
    named = [w for w in m.workers if w.label in fault.message]
    if m.number or not named or fault.span is None or any(e.kind == "blocked" for e in trace.events):
        return
    w = min(named, key=lambda w: fault.message.index(w.label))  # a message begins with whose access or arrival is at fault
    end = max((e.start + e.length for e in trace.events), default=0.0)
    trace.record_wait(w.label, w.time, w.time, "", fault.span.line)
    trace.events.append(Event(w.label, fault.code, "fault", w.time, max(FAULT_SHARE * end, COPY_LATENCY / 10), fault.span.line))


def record_earlier_access(m: Machine, old: Record) -> None:
    """Record the earlier access of a race in the row of its worker; an engine's work is among the events."""
    trace, w = m.launch.trace, m.workers[old.worker]
    if trace is not None and not m.number and old.label == w.label:
        end = max((e.start + e.length for e in trace.events), default=0.0)
        trace.events.append(
            Event(w.label, old.description, "access", old.time, max(FAULT_SHARE * end, COPY_LATENCY / 10), old.span.line, old.label)
        )


def record_product(w: Worker, p: Product, volume: int) -> None:
    """Record a product of `volume` multiply-adds."""
    trace = w.m.launch.trace
    if trace is not None:
        _occupy_engine(trace, w, p, "tensor core", "product", f"{w.label} line {p.actor.span.line}", volume / PRODUCT_RATE, 0)


def record_copies(w: Worker, copies: list[Copy], text: str) -> None:
    """Record one copy, or the copies of a multicast to all CTAs, which land together."""
    trace = w.m.launch.trace
    if trace is None:
        return
    first, *multicast_copies = copies
    _occupy_engine(trace, w, first, "copy engine", "copy", text, first.target.nbytes / COPY_RATE, COPY_LATENCY)
    for c in multicast_copies:
        c.time = first.time


def record_store(w: Worker, s: Store, text: str) -> None:
    """Record a bulk store."""
    trace = w.m.launch.trace
    if trace is not None:
        _occupy_engine(trace, w, s, "copy engine", "store", text, s.source.nbytes / COPY_RATE, 0)


def _occupy_engine(trace: Trace, w: Worker, action: Action, engine: str, kind: str, name: str, busy: float, latency: float) -> None:
    """Occupy the engine, once it is free, for the time `busy`; the action completes `latency` later."""
    m = w.m
    start = max(w.time, m.engine_time.get(engine, 0.0))
    m.engine_time[engine] = start + busy
    action.time = start + busy + latency
    if not m.number:
        label, line, access = action.actor.label, action.actor.span.line, _describe_access(action)
        trace.busy(Event(engine, name, kind, start, busy + latency, line, label, access))
        record_steps(m)
        if kind != "copy":  # the issue of a copy to an mbarrier is an event of that
            trace.sync_steps.append(SyncStep(w.label, kind, name, line, w.time, engine=label, access=access))


def _describe_access(action: Action) -> str:
    """Describe the accesses to shared memory that an action may make until it is waited for."""
    texts = dict.fromkeys(r.text for r in action.records)
    return f"may {action.records[0].mode} {' and '.join(texts)}" if texts else ""
