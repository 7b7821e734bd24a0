"""The protocol of barriers: effects of arrivals, copies that land and waits, and the clocks they join.

The rules are in docs/semantics.md. Invariant: any change that a blocked worker may wait for is announced to the
machine (`changed`). The main loop decides who blocks.
"""

from __future__ import annotations

from ..text.diagnostics import CuirError
from ..text.plurals import count_noun
from ..text.source import Span
from . import causes, laps
from .access_records import Actor
from .barrier_state import LOG_LENGTH, Arrival, Event, Generation, Mbarrier, NamedBarrier
from .clocks import Clock
from .faults import make_fault
from .machine import Machine, Worker


# ---- mbarriers
def arrive(m: Machine, bar: Mbarrier, w: Worker, span: Span, expect: int = 0) -> None:
    """Count one arrival of a worker, adding `expect` bytes to the phase.

    Raises CuirError S402 (too many arrivals, in this order or in another one).
    """
    n = w.number
    if bar.pending == 0:
        raise causes.make_excess_arrival_fault(m, bar, w, span)
    if bar.had_bytes and w.clock.progress[bar.entry] < bar.phase - 1 and m.launch.detect:
        raise causes.make_early_arrival_fault(m, bar, w, span)
    m.tick += 1
    bar.last = bar.log = Event(bar.log, m.tick, "arrive", bar.phase, n, w.label, span, expect, w.clock.times[n])
    bar.came[n] = bar.came.get(n, 0) + 1
    bar.clock.join(w.clock)
    bar.pending -= 1
    bar.bytes += expect
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
    bar.bytes -= nbytes
    bar.landed += nbytes
    bar.clock.join_progress(actor.clock)
    bar.time = max(bar.time, time)
    if bar.pending == 0 and bar.bytes < 0:
        raise causes.make_excess_bytes_fault(m, bar, actor.label, actor.span)
    _complete_phase(m, bar)
    return event


def _complete_phase(m: Machine, bar: Mbarrier) -> None:
    """End a barrier's current phase if no arrivals or bytes are missing.

    Raises CuirError S401 for a waiter that is a lap behind by that.
    """
    if bar.pending or bar.bytes:
        return
    over = bar.phase
    bar.clock.times[bar.entry] = bar.clock.fenced[bar.entry] = bar.clock.progress[bar.entry] = over
    bar.had_bytes = bar.landed > 0
    bar.phase, bar.pending = over + 1, bar.count
    bar.expected = bar.landed = 0
    bar.marks.append(bar.log)
    if len(bar.marks) > LOG_LENGTH and (end := bar.marks.pop(0)) is not None:
        end.before = None
    bar.phase_clock = bar.clock.copy()
    bar.seen_time = bar.time
    m.mark_change()
    for worker, wait in bar.waits.items():
        if wait.phase == over - 1 and bar.phase_clock.progress[worker] < wait.epoch and m.launch.detect:
            raise laps.make_lap_fault(m, bar, m.workers[worker], wait.phase, wait.span, wait)


def wait(m: Machine, bar: Mbarrier, w: Worker, parity: int, span: Span) -> bool:
    """Return True if the phase is complete, after the worker's clock has joined it.

    Raises CuirError S401 (a lap behind).
    """
    last_known = w.clock.times[bar.entry]
    phase = last_known if last_known % 2 == parity else last_known + 1
    if bar.phase <= phase:
        return False
    if bar.phase > phase + 1 and m.launch.detect:
        raise laps.make_lap_fault(m, bar, w, phase, span, None)
    if phase >= 0:
        w.clock.join(bar.phase_clock)
    n = w.number
    m.tick += 1
    bar.waits[n] = bar.log = Event(bar.log, m.tick, "wait", phase, n, w.label, span, parity, w.clock.times[n], last_known)
    return True


# ---- named barriers
def meet(m: Machine, bar: NamedBarrier, w: Worker, span: Span, waits: bool) -> int:
    """Count one arrival at a named barrier; return the generation it belongs to.

    Raises CuirError S406.
    """
    bar.last = Arrival(w.label, span)
    bar.arrivals.append(bar.last)
    bar.warps_here += w.program.threads // 32
    if (bar.warps_here < bar.warps) != (len(bar.arrivals) < bar.count) or bar.warps_here > bar.warps:
        raise make_warps_fault(m, bar, span)
    bar.came[w.number] = bar.came.get(w.number, 0) + 1
    bar.clock.join(w.clock)
    bar.time = max(bar.time, w.time)
    bar.waiting += waits
    generation = bar.generation
    if len(bar.arrivals) == bar.count:
        if bar.waiting:
            bar.over[generation] = Generation(bar.clock, bar.waiting, bar.time)
        bar.generation, bar.waiting, bar.arrivals, bar.warps_here = generation + 1, 0, [], 0
        bar.clock = Clock(*bar.size)
        m.mark_change()
    return generation


def make_warps_fault(m: Machine, bar: NamedBarrier, span: Span) -> CuirError:
    """Make S406: the hardware would open the barrier for other arrivals than its count requires."""
    arrivals = (
        f"{count_noun(len(bar.arrivals), 'arrival')} of {count_noun(bar.warps_here, 'warp')} ({', '.join(a.label for a in bar.arrivals)})"
    )
    return make_fault(
        m,
        "S406",
        f"`{bar.text}` opens at {count_noun(bar.count, 'arrival')} of {count_noun(bar.warps, 'warp')} in all, found {arrivals}",
        span,
        "each worker comes once a phase; warps= is the sum over those that come, four for a warpgroup",
        [("declared here", bar.span)],
    )


def has_passed(bar: NamedBarrier, w: Worker, generation: int) -> bool:
    """Return True if the generation is complete, after the worker's clock has joined it."""
    completed = bar.over.get(generation)
    if completed is None:
        return False
    w.clock.join(completed.clock)
    w.time = max(w.time, completed.time)
    completed.waiting -= 1
    if completed.waiting == 0:
        del bar.over[generation]
    return True
