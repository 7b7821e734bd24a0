"""Barriers and fences: who arrives and who waits; protocol.py has the effects on a barrier."""

from __future__ import annotations

from ...checking.checked import Barrier
from ...text.source import Span
from .. import protocol, trace_times
from ..barrier_state import Mbarrier, NamedBarrier
from ..code import Site
from ..element_places import compile_barrier_place, list_peers
from ..faults import make_fault
from ..machine import BLOCK, GO, POINT, Block, Evaluate, Worker
from ..ops_registry import runs
from ..values import require_uniform


@runs("mbarrier")
def mbarrier(b: Barrier, text: str, entry: int, workers: int, entries: int) -> Mbarrier:
    return Mbarrier(text, entry, b.count, b.span, workers, entries)


@runs("named_barrier")
def named_barrier(b: Barrier, text: str, entry: int, workers: int, entries: int) -> NamedBarrier:
    return NamedBarrier(text, b.count, b.warps, b.span, workers, entries)


@runs("mbarrier.expect")
def expect(site: Site) -> Evaluate:
    bar, size, span = compile_barrier_place(site, "bar"), site.value("bytes"), site.span

    def run(w: Worker) -> int:
        b, n = bar(w), require_uniform(size(w))
        if n < 0:
            raise make_fault(
                w.m, "S404", f"{w.label} expects {n} bytes on `{b.text}`", span, "bytes are nbytes(view) of the views to be copied"
            )
        protocol.arrive(w.m, b, w, span, n)
        w.clock.start_epoch()
        w.m.count("arrivals")
        return POINT

    return run


@runs("mbarrier.arrive")
def arrive(site: Site) -> Evaluate:
    bar, span, along = compile_barrier_place(site, "bar"), site.span, site.const("cluster", False)

    def run(w: Worker) -> int:
        b = bar(w)
        for peer in list_peers(w.m, w, b, site, along):
            protocol.arrive(w.m, peer, w, span)
        w.clock.start_epoch()
        w.m.count("arrivals")
        return POINT

    return run


@runs("mbarrier.wait")
def wait(site: Site) -> Evaluate:
    bar, parity, span = compile_barrier_place(site, "bar"), site.value("parity"), site.span

    def run(w: Worker) -> int:
        b, p = bar(w), require_uniform(parity(w))
        if p not in (0, 1):
            raise make_fault(w.m, "S405", f"a parity is 0 or 1, {w.label} waits for {p}", span, "the parity of a phase is phase % 2")
        phase = protocol.wait(w.m, b, w, p, span)
        if phase is not None:
            w.block = Block(b, phase, span)
            return BLOCK
        start, w.time = w.time, max(w.time, b.seen_time)
        w.m.count("waits")
        trace_times.record_wait(w, start, f"wait {b.text}", span)
        return POINT

    return run


@runs("named_barrier.sync")
def named_sync(site: Site) -> Evaluate:
    bar, span = compile_barrier_place(site, "bar"), site.span
    return lambda w: join(w, bar(w), span)


@runs("named_barrier.arrive")
def named_arrive(site: Site) -> Evaluate:
    bar, span = compile_barrier_place(site, "bar"), site.span

    def run(w: Worker) -> int:
        protocol.meet(w.m, bar(w), w, span, False)
        w.clock.start_epoch()
        w.m.count("arrivals")
        return POINT

    return run


@runs("sync")
def sync(site: Site) -> Evaluate:
    span = site.span
    return lambda w: join(w, w.m.joins[w.cta], span)


def join(w: Worker, bar: NamedBarrier, span: Span) -> int:
    """Arrive once, then wait for the other workers: the instruction is run again until they have come."""
    if w.ticket is None:
        w.ticket = protocol.meet(w.m, bar, w, span, True)
        w.clock.start_epoch()
        w.started = w.time
    if not protocol.has_passed(bar, w, w.ticket):
        w.block = Block(bar, w.ticket, span)
        return BLOCK
    w.ticket = None
    w.m.count("waits")
    trace_times.record_wait(w, w.started, f"sync {bar.text}", span)
    return POINT


@runs("fence_async")
def fence_async(site: Site) -> Evaluate:
    tensors = bool(site.const("tensors", False))

    def run(w: Worker) -> int:
        w.fence(tensors)
        return GO

    return run
