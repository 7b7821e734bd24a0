"""Small histories of events, told in words and run by the rules of cuir/sync over each kind of order.

A history is events with ";" between them, each of a worker: `a write x; a arrive m; b wait m 0; b read x`. Workers a and b
are of CTA 0, c of CTA 1, of four warps each; d is of CTA 0 and one warp. MBARRIERS and PLACES name the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from cuir.explore.bit_orders import BitOrder, TensorBits, WorkerBits
from cuir.interp.clocks import Clock, TensorClock, WorkerClock
from cuir.sync import meetings, phases
from cuir.sync.accesses import QUEUE, Finding, drop_replaced_reads, find_races
from cuir.sync.byte_ranges import Intervals, covers, is_overlapping
from cuir.sync.orders import Party, can_be_ordered
from cuir.sync.waits import split_at_most, split_through
from cuir.text.source import Source, Span

WORKERS = "abcd"
CTAS = {"a": 0, "b": 0, "c": 1, "d": 0}
WARPS = {"a": 4, "b": 4, "c": 4, "d": 1}
MBARRIERS = {"m": 1, "k": 1, "p": 2}  # counts of arrivals
# The bytes of each place. T is a tensor in which barriers order one CTA alone, U one in which they order a cluster.
PLACES: dict[str, tuple[str, Intervals]] = {
    "x": ("shared", ((0, 64),)),
    "y": ("shared", ((64, 128),)),
    "xy": ("shared", ((0, 128),)),
    "left": ("shared", ((0, 32),)),
    "T": ("T", ((0, 64),)),
    "U": ("U", ((0, 64),)),
}
BYTES = 64
SOURCE = Source("history", "\n" * 99)


@dataclass
class Touch:
    """An access, as the rules take it."""

    mode: str
    proxy: str
    memory: str
    worker: int
    text: str
    span: Span
    awaited: str
    seen: bool
    completion: Any

    @property
    def owner(self) -> str:
        return WORKERS[self.worker]

    @property
    def label(self) -> str:
        return self.owner

    @property
    def description(self) -> str:
        return f"the {self.mode}"


@dataclass
class Bar:
    """An mbarrier; `number` counts them."""

    text: str
    number: int
    count: int
    order: Any
    phase_order: Any
    pending: int
    span: Span | None = None
    phase: int = 0
    bytes: int = 0
    expected: int = 0
    used: int = -1
    had_bytes: bool = False
    ends: list[Any] = field(default_factory=list)
    landed: list[Touch] = field(default_factory=list)
    flying: list[tuple[Touch, Any]] = field(default_factory=list)
    late: list[tuple[Any, list[Any]]] = field(default_factory=list)
    waits: dict[int, Wait] = field(default_factory=dict)


@dataclass
class Wait:
    phase: int
    event: Any


@dataclass
class Named:
    """A named barrier at which a and b meet."""

    order: Any
    text: str = "n"
    count: int = 2
    warps: int = 8
    warps_here: int = 0
    arrivals: list[str] = field(default_factory=list)
    over: list[Any] = field(default_factory=list)


class Clocks:
    """Vector clocks, as the interpreter has them."""

    def __init__(self) -> None:
        self.orders = [WorkerClock(n, len(WORKERS), len(MBARRIERS) + len(WORKERS)) for n in range(len(WORKERS))]
        self.queued = [0] * len(WORKERS)

    def make_order(self) -> Clock:
        return Clock(len(WORKERS), len(MBARRIERS) + len(WORKERS))

    def event(self, worker: int) -> Any:
        return self.orders[worker].event()

    def begin(self, worker: int) -> None:
        self.orders[worker].start_epoch()

    def fence(self, worker: int, tensors: bool) -> None:
        self.orders[worker].fence(tensors)

    def for_tensors(self, order: Clock) -> TensorClock:
        return TensorClock(order, self.orders)

    def issue(self) -> Any:
        return None

    def enter_queue(self, worker: int) -> Any:
        self.queued[worker] += 1
        return len(WORKERS) + len(MBARRIERS) + worker, self.queued[worker]

    def learned(self, worker: int) -> Any:
        return self.orders[worker].without_own(worker)

    def retire(self, worker: int, touch: Touch) -> None:
        touch.completion = self.event(worker)

    def find_last_known(self, worker: int, bar: Bar) -> int:
        return self.orders[worker].times[len(WORKERS) + bar.number]

    def end(self, bar: Bar) -> Any:
        event = (len(WORKERS) + bar.number, bar.phase)
        for touch in bar.landed:
            touch.completion = event
        return event


class Bits:
    """Sets of events, as the explorer has them."""

    def __init__(self) -> None:
        self.next = 1
        self.orders = [WorkerBits(self.issue()) for _ in WORKERS]

    def make_order(self) -> BitOrder:
        return BitOrder()

    def event(self, worker: int) -> Any:
        return self.orders[worker].event

    def begin(self, worker: int) -> None:
        self.orders[worker].begin_event(self.issue())

    def fence(self, worker: int, tensors: bool) -> None:
        self.orders[worker].fence(tensors, self.issue())

    def for_tensors(self, order: BitOrder) -> TensorBits:
        return TensorBits(order, self.orders)

    def issue(self) -> Any:
        self.next *= 2
        return self.next // 2

    def enter_queue(self, worker: int) -> Any:
        return self.issue()

    def learned(self, worker: int) -> Any:
        return self.orders[worker].without_own()

    def retire(self, worker: int, touch: Touch) -> None:
        self.orders[worker].retire(touch.completion)

    def find_last_known(self, worker: int, bar: Bar) -> int:
        return max((n for n, event in enumerate(bar.ends) if self.orders[worker].is_before(event)), default=-1)

    def end(self, bar: Bar) -> Any:
        event = self.issue()
        for touch in bar.landed:
            event |= touch.completion
        return event


class Run:
    """A history under one kind of order. seen: as a run tells it, not as a search for schedules does."""

    def __init__(self, kind: type[Clocks] | type[Bits], seen: bool = True):
        self.world: Any = kind()
        self.seen = seen
        make = self.world.make_order
        self.bars = {name: Bar(name, n, count, make(), make(), count) for n, (name, count) in enumerate(MBARRIERS.items())}
        self.named = Named(make())
        self.touches: list[tuple[Touch, Intervals, str]] = []
        self.tickets: dict[int, int] = {}
        self.open: dict[int, list[Touch]] = {}
        self.closed: dict[int, list[list[Touch]]] = {}
        self.stores: dict[int, list[Touch]] = {}
        self.products: dict[int, list[Touch]] = {}
        self.queues: dict[int, list[Any]] = {}

    def find(self, history: str) -> Finding | None:
        """Return the first finding; its line counts the events from 1."""
        for line, event in enumerate(history.split(";"), 1):
            who, what, *rest = event.split()
            for finding in getattr(self, f"do_{what}")(WORKERS.index(who), Span(SOURCE, line, 1, line, 2), *rest):
                return finding
        return None

    # ---- accesses
    def _access(self, worker: int, span: Span, mode: str, name: str, proxy: str, completion: Any, awaited: str = "") -> Iterator[Finding]:
        space, bytes_ = PLACES[name]
        memory = "shared" if space == "shared" else "tensor"
        order = self.world.orders[worker]
        new = Touch(mode, proxy, memory, worker, name, span, awaited, self.seen, completion)
        known = order if memory == "shared" else self.world.for_tensors(order)
        scope = {"shared": "cluster", "T": "cta", "U": "cluster"}[space]

        def unorderable(old: Touch) -> bool:
            a, b = (Party(0, CTAS[WORKERS[t.worker]]) for t in (new, old))
            return not can_be_ordered(a, b, scope)  # type: ignore[arg-type]

        earlier = [t for t, ranges, other in self.touches if other == space and is_overlapping(bytes_, ranges)]
        yield from (finding for _, finding in find_races(new, earlier, known, unorderable))
        if mode == "write":
            self.touches = [t for t in self.touches if t[2] != space or not covers(bytes_, t[1])]
        elif mode == "read":
            kept = drop_replaced_reads([t for t, ranges, other in self.touches if (ranges, other) == (bytes_, space)], new, order)
            self.touches = [t for t in self.touches if t[1:] != (bytes_, space) or any(t[0] is k for k in kept)]
        self.touches.append((new, bytes_, space))
        self.last = new

    def do_write(self, worker: int, span: Span, name: str) -> Iterator[Finding]:
        return self._access(worker, span, "write", name, "generic", self.world.event(worker))

    def do_read(self, worker: int, span: Span, name: str) -> Iterator[Finding]:
        return self._access(worker, span, "read", name, "generic", self.world.event(worker))

    def do_add(self, worker: int, span: Span, name: str) -> Iterator[Finding]:
        return self._access(worker, span, "add", name, "generic", self.world.event(worker))

    # ---- engines
    def do_copy(self, worker: int, span: Span, bar: str, name: str) -> Iterator[Finding]:
        """Issue a bulk copy, which lands on an mbarrier."""
        yield from self._access(worker, span, "write", name, "async", self.world.issue(), f"phase of {bar}")
        self.bars[bar].flying.append((self.last, self.world.orders[worker].copy()))
        self.world.begin(worker)

    def do_land(self, worker: int, span: Span, name: str) -> Iterator[Finding]:
        """Land the first copy in flight on an mbarrier."""
        bar = self.bars[name]
        touch, order = bar.flying.pop(0)
        bar.used = bar.phase
        phases.count_landing(bar, order, BYTES)
        bar.landed.append(touch)
        if (finding := phases.find_excess_bytes(bar, span, "the copy", bar.expected if self.seen else None)) is not None:
            yield finding
        yield from self._complete(bar)

    def do_load(self, worker: int, span: Span, name: str) -> Iterator[Finding]:
        """Issue a copy of an async group."""
        yield from self._access(worker, span, "write", name, "generic", self.world.issue(), "copy_wait")
        self.open.setdefault(worker, []).append(self.last)
        self.world.begin(worker)

    def do_commit(self, worker: int, span: Span) -> Iterator[Finding]:
        self.closed.setdefault(worker, []).append(self.open.pop(worker, []))
        return iter(())

    def do_drain(self, worker: int, span: Span, keep: str) -> Iterator[Finding]:
        over, self.closed[worker] = split_at_most(self.closed.get(worker, []), int(keep))
        for touch in (t for group in over for t in group):
            self.world.retire(worker, touch)
        return iter(())

    def do_send(self, worker: int, span: Span, name: str) -> Iterator[Finding]:
        """Issue a bulk store of a place."""
        yield from self._access(worker, span, "read", name, "async", self.world.issue(), "store_wait")
        self.stores.setdefault(worker, []).append(self.last)
        self.world.begin(worker)

    def do_sent(self, worker: int, span: Span, keep: str) -> Iterator[Finding]:
        over, self.stores[worker] = split_at_most(self.stores.get(worker, []), int(keep))
        for touch in over:
            self.world.retire(worker, touch)
        return iter(())

    def do_product(self, worker: int, span: Span, name: str) -> Iterator[Finding]:
        yield from self._access(worker, span, "read", name, "async", self.world.issue(), "mma_wait")
        self.products.setdefault(worker, []).append(self.last)
        self.world.begin(worker)

    def do_multiplied(self, worker: int, span: Span, number: str) -> Iterator[Finding]:
        """Wait for a product: the first in flight is 0."""
        products = self.products[worker]
        over, self.products[worker] = split_through(products, products[int(number)])
        for touch in over:
            self.world.retire(worker, touch)
        return iter(())

    def do_into(self, worker: int, span: Span, name: str) -> Iterator[Finding]:
        """Issue a product into a place, by an engine that keeps the order of issue."""
        event = self.world.enter_queue(worker)
        yield from self._access(worker, span, "write", name, QUEUE, event, "a commit")
        self.queues.setdefault(worker, []).append(event)
        self.world.begin(worker)

    def do_deliver(self, worker: int, span: Span, name: str) -> Iterator[Finding]:
        """Issue an arrival at an mbarrier behind the worker's products."""
        self.bars[name].late.append((self.world.learned(worker), list(self.queues.get(worker, []))))
        self.world.begin(worker)
        return iter(())

    def do_delivered(self, worker: int, span: Span, name: str) -> Iterator[Finding]:
        """Arrive late, for the first of these on an mbarrier."""
        bar = self.bars[name]
        order, events = bar.late.pop(0)
        if (finding := phases.find_excess_arrival(bar, WORKERS[worker], span, self.seen)) is not None:
            yield finding
        phases.count_late_arrival(bar, order, *events)
        yield from self._complete(bar)

    def do_fence(self, worker: int, span: Span, tensors: str = "") -> Iterator[Finding]:
        self.world.fence(worker, tensors == "tensors")
        return iter(())

    # ---- barriers
    def do_arrive(self, worker: int, span: Span, name: str, copies: str = "0") -> Iterator[Finding]:
        """Arrive, expecting the bytes of some copies."""
        bar, label = self.bars[name], WORKERS[worker]
        order = self.world.orders[worker]
        if (finding := phases.find_excess_arrival(bar, label, span, self.seen)) is not None:
            yield finding
        if bar.had_bytes and (finding := phases.find_early_arrival(bar, order, bar.ends[-1], label, span)) is not None:
            yield finding
        phases.count_arrival(bar, order, int(BYTES * float(copies)))
        bar.expected += int(BYTES * float(copies))
        if (finding := phases.find_excess_bytes(bar, span)) is not None:
            yield finding
        yield from self._complete(bar)
        self.world.begin(worker)

    def _complete(self, bar: Bar) -> Iterator[Finding]:
        if not phases.is_complete(bar):
            return
        event = self.world.end(bar)
        bar.ends.append(event)
        bar.had_bytes, bar.landed, bar.expected = bool(bar.landed), [], 0
        phases.end_phase(bar, event)
        for worker, wait in phases.find_lapped(bar, bar.waits):
            yield phases.make_lap_finding(bar, WORKERS[worker], wait.phase, Span(SOURCE, 99, 1, 99, 2))

    def do_wait(self, worker: int, span: Span, name: str, parity: str) -> Iterator[Finding]:
        """Wait for a parity; a history in which the wait does not return here is not one."""
        bar, order = self.bars[name], self.world.orders[worker]
        phase, ended = phases.try_wait(bar, order, self.world.find_last_known(worker, bar), int(parity))
        assert ended > 0, "this wait does not return here"
        if ended >= phases.LAPPED:
            yield phases.make_lap_finding(bar, WORKERS[worker], phase, span)
        bar.waits[worker] = Wait(phase, self.world.event(worker))

    def do_meet(self, worker: int, span: Span) -> Iterator[Finding]:
        named = self.named
        named.arrivals.append(WORKERS[worker])
        named.warps_here += WARPS[WORKERS[worker]]
        if (finding := meetings.find_wrong_warps(named, span, self.seen)) is not None:
            yield finding
        named.order.join(self.world.orders[worker])
        self.world.begin(worker)
        self.tickets[worker] = len(named.over)
        if meetings.is_full(named):
            named.over.append(named.order)
            named.order, named.arrivals, named.warps_here = self.world.make_order(), [], 0

    def do_pass(self, worker: int, span: Span) -> Iterator[Finding]:
        self.world.orders[worker].join(self.named.over[self.tickets[worker]])
        return iter(())

    def do_end(self, worker: int, span: Span) -> Iterator[Finding]:
        """End all workers."""
        for bar in self.bars.values():
            if bar.used >= 0:
                end = bar.ends[bar.used] if bar.used < len(bar.ends) else None
                finding = phases.find_unawaited_copy(bar, bar.used, end, self.world.orders, span, "the copy" if self.seen else "")
                if finding is not None:
                    yield finding
