"""Phases of mbarriers: arrivals, bytes, which phase a wait is for, and the faults of each (S401 to S403, M403).

A phase ends when its arrivals and the bytes that they expect have come. A wait names the parity of a phase: of the
last one that the waiter knows to have ended, or of the next. Who waits for a phase joins what all arrivals knew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol, TypeVar

from ..text.phrases import count_noun
from ..text.source import Span
from .accesses import Finding
from .orders import E, E_co, Joinable, Order, is_known

O = TypeVar("O", bound=Joinable)
W = TypeVar("W", bound="ReturnedWait")


class PhaseState(Protocol[O]):
    """The state of an mbarrier.

    Attributes:
        phase: The current phase; those before have ended.
        pending: Arrivals that it lacks; at first `count`.
        bytes: Bytes that were expected and have not landed.
        order: What all arrivals so far knew.
        phase_order: `order` when the last phase ended.
    """

    @property
    def text(self) -> str: ...
    @property
    def count(self) -> int: ...
    @property
    def span(self) -> Span | None: ...

    phase: int
    pending: int
    bytes: int
    order: O
    phase_order: O


class ReturnedWait(Protocol[E_co]):
    """The last wait of a worker that has returned; event: of the worker then."""

    @property
    def phase(self) -> int: ...
    @property
    def event(self) -> E_co: ...


# ---- transitions
def count_arrival(bar: PhaseState[O], order: O, nbytes: int = 0, count: int = 1) -> None:
    """Count an arrival, or several of workers with one order, which expect so many bytes in the phase; order: of its worker."""
    bar.order.join(order)
    bar.pending -= count
    bar.bytes += nbytes


def count_landing(bar: PhaseState[O], order: O, nbytes: int) -> None:
    """Count the bytes of a copy; order: of its worker when it was issued, which is over, but ordered by nothing."""
    bar.bytes -= nbytes
    bar.order.join_progress(order)


def count_late_arrival(bar: PhaseState[O], order: O, *events: E) -> None:
    """Count the arrival of an engine that is done with what a worker issued.

    order: what the worker had learned from others before. events: the work that is over.
    """
    bar.order.join(order)
    bar.pending -= 1
    for event in events:
        bar.order.learn(event)


def is_complete(bar: PhaseState[O]) -> bool:
    """Return True if the phase lacks neither arrivals nor bytes."""
    return not (bar.pending or bar.bytes)


def end_phase(bar: PhaseState[O], *events: E) -> int:
    """End the phase and return its number; events: its end, and what else is over by that."""
    over = bar.phase
    for event in events:
        bar.order.learn(event)
    bar.phase_order = bar.order.copy()
    bar.phase, bar.pending = over + 1, bar.count
    return over


def find_awaited_phase(last_known: int, parity: int) -> int:
    """Return the phase that a wait is for; last_known: the last one that the waiter knows to have ended, or -1."""
    return last_known if last_known % 2 == parity else last_known + 1


def try_wait(bar: PhaseState[O], order: O, last_known: int, parity: int, unchecked: bool = False) -> tuple[int, int]:
    """Return the awaited phase, and how many phases have ended from it on: LAPPED or more are a fault.

    If the phase has ended, the wait returns: its worker's order joins what the arrivals knew. A first wait for phase -1
    finds nothing to join. unchecked: a wait that is a lap behind returns, too.
    """
    phase = find_awaited_phase(last_known, parity)
    ended = bar.phase - phase
    if phase >= 0 and (ended == 1 or (unchecked and ended > 1)):
        order.join(bar.phase_order)
    return phase, ended


# ---- laps
LAPPED = 2  # ended phases with which a parity is the wrong one again


def find_lapped(bar: PhaseState[O], waits: Mapping[int, W]) -> Iterator[tuple[int, W]]:
    """Yield the workers, and their waits, that the end of the last phase may have overtaken.

    waits: the last wait of each worker. One for the phase before is in time only if the end of this phase implies that
    the waiter has gone on.
    """
    awaited = bar.phase - 2
    for worker, wait in waits.items():
        if wait.phase == awaited and not bar.phase_order.is_over(wait.event):
            yield worker, wait


def make_lap_finding(bar: PhaseState[O], label: str, phase: int, span: Span) -> Finding:
    """Make S401: the next phase can end before a wait for this one returns."""
    return Finding(
        "S401",
        f"{label} waits for phase {phase} of `{bar.text}`, and phase {phase + 1} can be over by then: a parity tells only two phases apart",
        span,
        "whoever lets the barrier advance must first wait for something that the waiter does after this wait",
        ((f"`{bar.text}` is declared here", bar.span),),
    )


# ---- arrivals and bytes
def find_excess_arrival(bar: PhaseState[O], label: str, span: Span, seen: bool) -> Finding | None:
    """Report S402 for an arrival at a phase that has all of its arrivals, and not its bytes.

    seen: True if it came in a run, False if it can come in some schedule.
    """
    if bar.pending:
        return None
    comes, missing = ("came", count_noun(bar.bytes, "byte")) if seen else ("can come", f"{bar.bytes} bytes")
    return Finding(
        "S402",
        f"`{bar.text}` takes {count_noun(bar.count, 'arrival')} a phase; one more {comes} from {label} while phase {bar.phase} still misses {missing}",
        span,
        "arrive for the next phase only after a wait that knows this one over; or the count is too small",
    )


def find_early_arrival(bar: PhaseState[O], order: Order[E], previous: E, label: str, span: Span) -> Finding | None:
    """Report S402 for an arrival that could come before a copy has landed in the previous phase.

    order: of the arriving worker. previous: the end of a phase in which a copy landed.
    """
    if order.is_over(previous):
        return None
    before = bar.phase - 1
    return Finding(
        "S402",
        f"{label} arrives for phase {bar.phase} of `{bar.text}`, and phase {before} can still miss its bytes: then this is an arrival too many",
        span,
        f"the arrival, or expect, stands behind a wait for phase {before} of `{bar.text}`",
    )


def find_excess_bytes(bar: PhaseState[O], span: Span, copy: str = "", expected: int | None = None) -> Finding | None:
    """Report S403 for a phase that has all of its arrivals, and more bytes than they expect.

    copy: the last one that landed, if it comes last. expected: the bytes of the phase, if it was seen in a run.
    """
    if bar.pending or bar.bytes >= 0:
        return None
    if expected is not None:
        found = f"expected {count_noun(expected, 'byte')}, and {expected - bar.bytes:,} landed with {copy}"
    else:
        found = f"{'gets' if copy else 'got'} {-bar.bytes} bytes more than it expects{f' with {copy}' if copy else ''}"
    return Finding(
        "S403",
        f"phase {bar.phase} of `{bar.text}` {found}",
        span,
        "expect(nbytes(view)) for each view that is copied on this barrier",
    )


# ---- the end
def find_unawaited_copy(
    bar: PhaseState[O], phase: int, end: E | None, orders: Iterable[Order[E]], span: Span, label: str = ""
) -> Finding | None:
    """Report M403 for a copy that no worker knows to have landed when all of them end.

    Args:
        bar: the barrier that it lands on.
        phase: the last phase in which one landed.
        end: the end of that phase, or None if it has not ended.
        orders: of all workers.
        span: the place of the copy.
        label: the copy, if a run made it.
    """
    if end is not None and is_known(end, orders):
        return None
    who = f"nobody waited for {label}, which landed" if label else "nobody waits for the copy that lands"
    return Finding(
        "M403",
        f"{who} in phase {phase} of `{bar.text}`: it may be in flight when the kernel ends",
        span,
        "every copy is waited for before the end",
    )
