"""In-flight async groups of a worker: products, cp.async copies and bulk stores.

Its waits retire them in order. Invariant: a name whose registers the tensor core uses is neither bound anew nor, after
another product took them over, read.
"""

from __future__ import annotations

from ..sync.waits import split_at_most, split_through
from ..text.source import Span, spell_name
from .access_records import Actor
from .actions import Action, Commit, Product, ReclaimedRegisters
from .barrier_state import Mbarrier
from .clocks import Event
from .engines import retire
from .faults import make_fault
from .late_waits import blame_late_wait, name_product_wait
from .machine import Worker


# ---- products
def retire_products(w: Worker, last: Product) -> list[Product]:
    """Retire `last` and all products before it; return them."""
    if last.over:
        return []
    groups = w.groups
    event = w.clock.event()
    over, groups.products = split_through(groups.products, last)
    for p in over:
        retire(w.m, p, event)
        p.over = True
        w.time = max(w.time, p.time)
        for name in p.names:
            if groups.operands.get(name) is p:
                del groups.operands[name]
    return over


def take_over(w: Worker, value: object, by: Product) -> None:
    """Assign the registers of `value` to the product `by`; names that hold it may no longer be read."""
    if isinstance(value, Product):
        value.successor = by
        return
    for name, bound_value in w.frame.items():
        if bound_value is value:
            w.frame[name] = ReclaimedRegisters(by)


def check_rebinding(w: Worker, name: str, old: object, new: object, span: Span) -> None:
    """Check that a name which an engine still uses is not bound anew.

    Raises CuirError M406 (accumulator), M407 (register operand).
    """
    m = w.m
    if isinstance(old, Product) and not old.over and old.successor is None and m.launch.detect:
        spelling = spell_name(name, span)
        hint, notes = blame_late_wait(
            w, span, "assignment", old.actor.span, f"{name_product_wait(m.launch.checked.arch)}({spelling}) before"
        )
        message = f"`{spelling}` is bound anew while {old.actor.label} still accumulates into it"
        raise make_fault(m, "M406", message, span, hint, [("the product was issued here", old.actor.span), *notes])
    p = w.groups.operands.get(name)
    if p is not None and new is not old and m.launch.detect:
        hint, notes = blame_late_wait(w, span, "assignment", p.actor.span, "mma_wait for that product before")
        message = f"`{spell_name(name, span)}` is bound anew while {p.actor.label} may still read it from registers"
        raise make_fault(m, "M407", message, span, hint, [("the product was issued here", p.actor.span), *notes])


# ---- queues: operations of an engine that performs them in the order of issue
def find_queue_event(w: Worker) -> Event:
    """Return the event at which the next operation or commit in the worker's queue will be over."""
    return w.m.first_queue + w.number, w.groups.queued


def enter_queue(w: Worker, action: Action) -> None:
    """Put an operation or a commit at the end of the worker's queue."""
    action.queue = [a for a in w.groups.queue if not a.acted]
    w.groups.queue = [*action.queue, action]
    w.groups.queued += 1


def commit_queue(w: Worker, actor: Actor, bar: Mbarrier, name: str) -> Commit:
    """Return an arrival at a barrier when all that the worker's queue holds is over."""
    commit = Commit(actor, bar, find_queue_event(w), name)
    enter_queue(w, commit)
    return commit


# ---- copies and stores
def drain_copies(w: Worker, keep: int) -> list[Action]:
    """Retire all closed groups of cp.async copies but the last `keep`; return the copies."""
    groups, w.groups.closed = split_at_most(w.groups.closed, keep)
    over = [copy for group in groups for copy in group]
    _drain(w, over)
    return over


def drain_stores(w: Worker, keep: int) -> list[Action]:
    """Retire all bulk stores but the last `keep`; return them."""
    over, w.groups.stores = split_at_most(w.groups.stores, keep)
    _drain(w, over)
    return over


def _drain(w: Worker, actions: list[Action]) -> None:
    for action in actions:
        retire(w.m, action, w.clock.event())
        w.time = max(w.time, action.time)


def finish(w: Worker) -> None:
    """Check that a worker ends with nothing in flight but bulk stores, for which the kernel's end waits.

    Raises CuirError M403, M404.
    """
    m, groups = w.m, w.groups
    if not m.launch.detect:
        return
    action = next((a for group in (groups.open, *groups.closed) for a in group), None)
    if action is not None:  # a group may be empty: the last rounds of a pipeline commit and wait for nothing
        raise make_fault(
            m,
            "M403",
            f"{action.actor.label} is still in flight when {w.label} ends",
            action.actor.span,
            "copy_commit() and copy_wait(0) before the end",
        )
    last = groups.queue[-1] if groups.queue else None
    if last is not None and not isinstance(last, Commit):
        raise make_fault(
            m,
            "M404",
            f"{last.actor.label} is still in flight when {w.label} ends",
            last.actor.span,
            "commit it to a barrier, and let who needs its results wait there",
        )
    if groups.products:
        p = groups.products[0]
        raise make_fault(
            m,
            "M404",
            f"{p.actor.label} is still in flight when {w.label} ends",
            p.actor.span,
            f"{name_product_wait(m.launch.checked.arch)}(x) for the last one",
        )
