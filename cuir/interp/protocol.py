"""The protocol of barriers: arrivals, copies that land and waits, by the rules of cuir/sync.

Invariant: any change that a blocked worker may wait for is announced to the machine (`changed`). The main loop decides
who blocks.
"""

from __future__ import annotations

from ..sync import meetings, phases
from ..text.source import Span
from . import causes, clocks, laps
from .access_records import Actor
from .barrier_state import LOG_LENGTH, Arrival, Event, Generation, Mbarrier, NamedBarrier
from .clocks import Clock
from .faults import make_finding_fault
from .machine import Machine, Worker


# ---- mbarriers
def arrive(m: Machine, bar: Mbarrier, w: Worker, span: Span, expect: int = 0) -> None:
    """Count one arrival of a worker, adding `expect` bytes to the phase.

    Raises CuirError S402 (too many arrivals, in this order or in another one).
    """
    n = w.number
    if (excess := phases.find_excess_arrival(bar, w.label, span, seen=True)) is not None:
        raise causes.make_excess_arrival_fault(m, bar, w, excess)
    if bar.had_bytes and m.launch.detect:
        early = phases.find_early_arrival(bar, w.clock, (bar.entry, bar.phase - 1), w.label, span)
        if early is not None:
            raise causes.make_early_arrival_fault(m, bar, w, early)
    m.tick += 1
    bar.last = bar.log = Event(bar.log, m.tick, "arrive", bar.phase, n, w.label, span, expect, w.clock.times[n])
    bar.came[n] = bar.came.get(n, 0) + 1
    phases.count_arrival(bar, w.clock, expect)
    bar.expected += expect
    bar.time = max(bar.time, w.time)
    _complete_phase(m, bar)


def note_issue(m: Machine, bar: Mbarrier, nbytes: int, actor: Actor) -> None:
    """Log on a barrier the issue of a copy whose bytes will arrive at it."""
    m.tick += 1
    bar.log = Event(bar.log, m.tick, "issue", bar.phase, actor.worker, actor.label, actor.span, nbytes, 0)


def land(m: Machine, bar: Mbarrier, nbytes: int, actor: Actor, time: float) -> tuple[int, int]:
    """Count the bytes of a copy that lands; return the event at which the copy is complete.

    Raises CuirError S403 (more bytes than expected).
    """
    event = (bar.entry, bar.phase)
    m.tick += 1
    bar.user = bar.log = Event(bar.log, m.tick, "land", bar.phase, actor.worker, actor.label, actor.span, nbytes, 0)
    bar.used_phase = bar.phase
    phases.count_landing(bar, actor.clock, nbytes)
    bar.landed += nbytes
    bar.time = max(bar.time, time)
    if (excess := phases.find_excess_bytes(bar, actor.span, actor.label, bar.expected)) is not None:
        raise causes.make_excess_bytes_fault(m, bar, excess)
    _complete_phase(m, bar)
    return event


def arrive_late(m: Machine, bar: Mbarrier, actor: Actor, over: clocks.Event, time: float) -> int:
    """Count the arrival of an engine for a worker, and return its phase; over: what has happened before it.

    Raises CuirError S402 (too many arrivals).
    """
    w = m.workers[actor.worker]
    if (excess := phases.find_excess_arrival(bar, actor.label, actor.span, seen=True)) is not None:
        raise causes.make_excess_arrival_fault(m, bar, w, excess)
    m.tick += 1
    phase = bar.phase
    bar.last = bar.log = Event(bar.log, m.tick, "arrive", phase, w.number, actor.label, actor.span, 0, 0)
    bar.came[w.number] = bar.came.get(w.number, 0) + 1
    phases.count_late_arrival(bar, actor.clock.without_own(w.number), over)
    bar.time = max(bar.time, time)
    _complete_phase(m, bar)
    return phase


def _complete_phase(m: Machine, bar: Mbarrier) -> None:
    """End a barrier's current phase if no arrivals or bytes are missing.

    Raises CuirError S401 for a waiter that is a lap behind by that.
    """
    if not phases.is_complete(bar):
        return
    phases.end_phase(bar, (bar.entry, bar.phase))
    bar.had_bytes = bar.landed > 0
    bar.expected = bar.landed = 0
    bar.marks.append(bar.log)
    if len(bar.marks) > LOG_LENGTH and (end := bar.marks.pop(0)) is not None:
        end.before = None
    bar.seen_time = bar.time
    m.mark_change()
    if m.launch.detect:
        for worker, wait in phases.find_lapped(bar, bar.waits):
            raise laps.make_lap_fault(m, bar, m.workers[worker], wait.phase, wait.span, wait)


def wait(m: Machine, bar: Mbarrier, w: Worker, parity: int, span: Span) -> int | None:
    """Return the phase to wait for, or None if it is complete, after the worker's clock has joined it.

    Raises CuirError S401 (a lap behind).
    """
    last_known = w.clock.times[bar.entry]
    detect = m.launch.detect
    phase, ended = phases.try_wait(bar, w.clock, last_known, parity, not detect)
    if ended <= 0:
        return phase
    if ended >= phases.LAPPED and detect:
        raise laps.make_lap_fault(m, bar, w, phase, span, None)
    n = w.number
    m.tick += 1
    bar.waits[n] = bar.log = Event(bar.log, m.tick, "wait", phase, n, w.label, span, parity, w.clock.times[n], last_known)
    return None


# ---- named barriers
def meet(m: Machine, bar: NamedBarrier, w: Worker, span: Span, waits: bool) -> int:
    """Count one arrival at a named barrier; return the generation it belongs to.

    Raises CuirError S406.
    """
    bar.last = Arrival(w.label, span)
    bar.arrivals.append(w.label)
    bar.warps_here += w.program.threads // 32
    if (wrong := meetings.find_wrong_warps(bar, span, seen=True)) is not None:
        raise make_finding_fault(m, wrong, notes=[("declared here", bar.span)])
    bar.came[w.number] = bar.came.get(w.number, 0) + 1
    bar.order.join(w.clock)
    bar.time = max(bar.time, w.time)
    bar.waiting += waits
    generation = bar.generation
    if meetings.is_full(bar):
        if bar.waiting:
            bar.over[generation] = Generation(bar.order, bar.waiting, bar.time)
        bar.generation, bar.waiting, bar.arrivals, bar.warps_here = generation + 1, 0, [], 0
        bar.order = Clock(*bar.size)
        m.mark_change()
    return generation


def has_passed(bar: NamedBarrier, w: Worker, generation: int) -> bool:
    """Return True if the generation is complete, after the worker's clock has joined it."""
    completed = bar.over.get(generation)
    if completed is None:
        return False
    w.clock.join(completed.order)
    w.time = max(w.time, completed.time)
    completed.waiting -= 1
    if completed.waiting == 0:
        del bar.over[generation]
    return True
