"""Times of workers and engines by the cost model (trace.py), entered in the trace if a run has one.

Changes nothing else. Invariant: the times of all batches are kept, for their waits; the trace shows the first.
"""

from __future__ import annotations

from ..text.source import Span
from .actions import Action, Copy, Product, Store
from .barrier_state import Handout, NamedBarrier
from .event_trace import COPY_LATENCY, COPY_RATE, PRODUCT_RATE, Trace
from .machine import Machine, Worker


def record_wait(w: Worker, start: float, name: str, span: Span) -> None:
    """Record that a worker goes on after a wait that it came to at `start`."""
    trace = w.m.launch.trace
    if trace is not None and not w.m.number:
        trace.waited(w.label, start, w.time, name, span.line)


def record_deadlock(m: Machine) -> None:
    """Record the waits of all workers of a machine in which nobody can go on."""
    trace = m.launch.trace
    if trace is None or m.number:
        return
    for w in m.workers:
        if not w.finished and w.block is not None:
            barrier = w.block.barrier
            name = "next unit of work" if isinstance(barrier, Handout) else barrier.text
            trace.blocked(w.label, w.started if isinstance(barrier, NamedBarrier) else w.time, f"wait {name}", w.block.span.line)


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
        trace.busy(engine, name, kind, start, busy + latency, action.actor.span.line)
