"""Barriers of CTAs (`bar`), and mbarriers, whose phases follow `sync.phases`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...sync.phases import count_arrival, end_phase, find_excess_arrival, is_complete
from ...text.source import Span
from .findings import describe_thread, make_span
from .groups import Group, list_distinct
from .knowledge import Clock, Event
from .operands import Array


@dataclass
class Waiting:
    """Threads that wait at a barrier: where they go on, and the register that takes a reduction's result."""

    slots: Array
    following: int
    block: int
    register: int | None = None


def count_warps(slots: Array) -> int:
    """Return how many warps threads are of; their numbers increase."""
    warps = slots >> 5
    return 1 + int(np.count_nonzero(warps[1:] != warps[:-1]))


@dataclass
class CtaBarrier:
    """Phase of one barrier of a CTA.

    Attributes:
        expected: Threads that end it; None for all of the CTA.
        arrived: Slots that have arrived, and their ticks then.
        clock: What threads knew that arrived without waiting.
        votes: Predicates of a reduction.
    """

    expected: int | None
    reduction: str
    arrived: list[Array] = field(default_factory=list)
    ticks: list[Array] = field(default_factory=list)
    waiting: list[Waiting] = field(default_factory=list)
    clock: Array | None = None
    votes: list[Array] = field(default_factory=list)
    place: int = 0

    def count_missing(self) -> int:
        """Return how many threads the phase lacks; whole warps count."""
        return (self.expected or 0) - 32 * sum(count_warps(a) for a in self.arrived)


@dataclass(frozen=True)
class JoinedPhase:
    """A phase of a barrier that has ended: who comes to the next must know of all who joined it, or might have joined it too.

    Attributes:
        threads, ticks: Who joined it, and when.
    """

    threads: Array
    ticks: Array
    place: int


class Mbarrier:
    """An mbarrier; `sync.phases` says how it changes.

    made: the thread that initialised it, and when.
    """

    def __init__(self, text: str, count: int, span: Span, total: int, engine: int, made: Event):
        self.text, self.count, self.span, self.engine, self.made = text, count, span, engine, made
        self.phase, self.pending, self.bytes = 0, count, 0
        self.touched: dict[int, int] = {}  # by instruction: how often it arrived, or changed the bytes, in this phase
        self.order, self.phase_order = Clock(np.zeros(total, np.int64)), Clock(np.zeros(total, np.int64))


MOST_BEDS = 64  # then those that nobody uses are dropped


class Sleepers:
    """Threads that wait for the phase of an mbarrier, which none of them looks at again before it is over.

    Attributes:
        beds: Barriers and their phases.
        at: The bed of each thread, -1 for none.
        wakes: How often some of them may have begun to look again.
    """

    def __init__(self, count: int):
        self.wakes = 0
        self.beds: list[tuple[Mbarrier, int]] = []
        self.at = np.full(count, -1)

    def put_to_sleep(self, slots: Array, bar: Mbarrier) -> None:
        """Let threads wait for the end of the current phase."""
        if len(self.beds) >= MOST_BEDS:
            used = np.unique(self.at[self.at >= 0])
            self.at = np.where(self.at < 0, -1, np.searchsorted(used, self.at))
            self.beds = [self.beds[i] for i in used.tolist()]
        self.at[slots] = len(self.beds)
        self.beds.append((bar, bar.phase))

    def wake(self) -> None:
        """Let all threads look again."""
        self.at[:] = -1
        self.beds.clear()
        self.wakes += 1

    def find_awake(self, slots: Array) -> Array:
        """Return the threads that do not wait for a phase that is still open."""
        beds = self.at[slots]
        if int(beds.max()) < 0:
            return slots
        over = np.array([bar.phase != phase for bar, phase in self.beds])
        awake = (beds < 0) | over[beds]
        self.at[slots[awake]] = -1
        return slots[awake]

    def list_barriers(self) -> list[Mbarrier]:
        """Return the barriers that threads wait for."""
        return list({id(bar): bar for bar, _ in (self.beds[i] for i in np.unique(self.at[self.at >= 0]).tolist())}.values())


@dataclass(frozen=True)
class Arrival:
    """How threads come to a barrier of their CTA.

    Attributes:
        number: Number of the barrier, of each thread.
        expected: Threads that end the phase; None for all.
        waits: Whether they wait.
        reduction: "", "popc", "and" or "or".
        register: Register for the result of the reduction.
    """

    number: Array
    expected: int | None
    waits: bool
    reduction: str
    register: int | None
    votes: Array | None
    following: int
    place: int
    block: int


class Barriers:
    """The barriers of the CTAs of a machine."""

    def __init__(self, machine: Any):  # the Machine, whose module imports this one
        self.machine = machine
        self.open: dict[tuple[int, int], CtaBarrier] = {}
        self.joined: dict[tuple[int, int], JoinedPhase] = {}  # the last phase of each barrier that somebody left unawaited
        self.mbarriers: dict[int, Mbarrier] = {}
        self.engines: dict[int, int] = {}

    def arrive(self, g: Group, arrival: Arrival) -> None:
        """Let threads arrive; those that wait stay here until `settle` lets them go on."""
        m = self.machine
        if arrival.waits and arrival.expected is None and not arrival.reduction and not self.open and g.n == np.count_nonzero(m.alive):
            m.knowledge.meet_in_cta(g.slots, m.next_tick(arrival.place))
            if m.clusters.size == 1:
                m.shared.shadow.forget_before(m.tick)
            m.place(arrival.following, g.slots)
            return
        numbers = g.spread(arrival.number)
        for cta in list_distinct(g.ctas):
            mine = np.flatnonzero(g.ctas == cta)
            for number in np.unique(numbers[mine]).tolist():
                chosen = mine[numbers[mine] == number]
                while len(chosen):
                    chosen = chosen[self._join(g, arrival, (cta, number), chosen) :]
        if not arrival.waits:
            self.settle()

    def _join(self, g: Group, arrival: Arrival, key: tuple[int, int], chosen: Array) -> int:
        """Let threads of a group join a phase: as many as end it. Return how many did."""
        m, slots = self.machine, g.slots[chosen]
        bar = self.open.setdefault(key, CtaBarrier(arrival.expected, arrival.reduction))
        if (bar.expected, bar.reduction) != (arrival.expected, arrival.reduction):
            who = describe_thread(m, int(slots[0]) + m.knowledge.first)
            raise m.findings.stop(
                "S406", f"{who} comes to barrier {key[1]} with another count or operation than those before it", make_span(m, arrival.place)
            )
        count = len(slots)
        if bar.expected is not None and count_warps(slots) > max(1, bar.count_missing() // 32):
            count = int(np.searchsorted(slots >> 5, np.unique(slots >> 5)[: max(1, bar.count_missing() // 32)][-1], side="right"))
            slots, chosen = slots[:count], chosen[:count]
        bar.place = arrival.place
        bar.arrived.append(slots)
        tick = m.next_tick(arrival.place)
        self._check_return(key, slots, arrival.place)
        bar.ticks.append(np.full(len(slots), tick))
        if arrival.votes is not None:
            bar.votes.append(g.spread(arrival.votes)[chosen])
        if arrival.waits:
            bar.waiting.append(Waiting(slots, arrival.following, arrival.block, arrival.register))
        else:
            clock = m.knowledge.take_snapshot(slots, tick)
            bar.clock = clock if bar.clock is None else np.maximum(bar.clock, clock)
        if bar.expected is not None and bar.count_missing() <= 0:
            self.settle()
        return count

    def _check_return(self, key: tuple[int, int], slots: Array, place: int) -> None:
        """Report a thread that does not know who joined the phase before: it might have come to that one instead."""
        m, last = self.machine, self.joined.get(key)
        if last is None or not m.launch.detect:
            return
        for slot in slots[np.unique(slots >> 5, return_index=True)[1]].tolist():  # one speaks for its warp
            others = last.threads >> 5 != slot + m.knowledge.first >> 5
            if (m.knowledge.find_known(slot, last.threads[others]) < last.ticks[others]).any():
                m.findings.add(
                    "S406",
                    f"{describe_thread(m, slot + m.knowledge.first)} comes to barrier {key[1]} again, and others may not have joined the phase before",
                    make_span(m, place),
                    "bar.sync instead of bar.arrive, another barrier in turn, or a wait for those who come to this one",
                    (("they joined it here", make_span(m, last.place)),),
                )
                return

    def settle(self) -> None:
        """End the phases that are complete."""
        m = self.machine
        for key, bar in list(self.open.items()):
            cta, _ = key
            arrived = np.concatenate(bar.arrived)
            first = cta * m.width
            if bar.expected is None:
                complete = len(arrived) >= int(np.count_nonzero(m.alive[first : first + m.width]))
            else:
                complete = bar.count_missing() <= 0
            if complete:
                del self.open[key]
                self.joined.pop(key, None)
                if bar.clock is not None:
                    self.joined[key] = JoinedPhase(arrived + m.knowledge.first, np.concatenate(bar.ticks), bar.place)
                self._end(bar, arrived)

    def _end(self, bar: CtaBarrier, arrived: Array) -> None:
        """End a phase: who waits knows what all arrivals knew."""
        m = self.machine
        tick = m.next_tick(bar.place)
        waiting = np.concatenate([w.slots for w in bar.waiting]) if bar.waiting else np.zeros(0, np.int64)
        if bar.clock is None and bar.expected is None:
            m.knowledge.meet_in_cta(arrived, tick)
        elif len(waiting):
            clock = m.knowledge.take_snapshot(waiting, tick)
            m.knowledge.learn(waiting, clock if bar.clock is None else np.maximum(clock, bar.clock))
        result: int | bool = 0
        if bar.votes:
            votes = np.concatenate(bar.votes)
            result = int(votes.sum()) if bar.reduction == "popc" else bool(votes.all() if bar.reduction == "and" else votes.any())
        for w in bar.waiting:
            if w.register is not None:
                m.regs[w.register] = m.regs[w.register].copy()
                m.regs[w.register][w.slots] = result
            m.place(w.following, np.sort(w.slots))

    def list_waiting(self) -> list[tuple[int, Array, str]]:
        """Return block and slots of the threads that wait at barriers."""
        return [(w.block, w.slots, f"wait at barrier {number} in") for (_, number), bar in self.open.items() for w in bar.waiting]

    # ---- mbarriers
    def init(self, slots: Array, places: Array, count: Array, place: int) -> None:
        """Initialise mbarriers."""
        m = self.machine
        for slot, at, n in zip(slots.tolist(), places.tolist(), count.tolist()):
            text = f"mbarrier at {at % m.shared.stride + m.shared.base:#x}"
            engine = self.engines.setdefault(at, len(self.engines))
            known = m.knowledge
            number = known.total + engine % max(1, known.engines)
            self.mbarriers[at] = Mbarrier(text, n, make_span(m, place), known.size, number, (slot + known.first, m.tick))

    def find(self, at: int, slot: int, place: int) -> Mbarrier:
        """Return the mbarrier at a place. Raises CuirError M401 if there is none."""
        bar, m = self.mbarriers.get(at), self.machine
        if bar is None:
            who = describe_thread(m, slot + m.knowledge.first)
            raise m.findings.stop(
                "M401", f"{who} uses an mbarrier that is not initialised", make_span(m, place), "mbarrier.init comes first"
            )
        if m.launch.detect and slot // m.width != at // m.shared.stride and not m.knowledge.is_known(slot, bar.made):
            who = describe_thread(m, slot + m.knowledge.first)
            m.findings.add(
                "R401",
                f"the use of an mbarrier by {who} is not ordered after its initialisation",
                make_span(m, place),
                "fence.mbarrier_init by the thread that initialises it, then the barrier of the cluster",
                (("it is initialised here", bar.span),),
            )
        return bar

    def arrive_at(self, slots: Array, places: Array, count: Array, nbytes: Array, place: int, in_cta: bool = False) -> Array:
        """Let threads arrive at mbarriers; return the phases that they arrived in.

        in_cta: whether they release for their own CTA alone.
        """
        m = self.machine
        phases = np.zeros(len(slots), np.uint64)
        for at in np.unique(places).tolist():
            chosen = np.flatnonzero(places == at)
            bar = self.find(at, int(slots[chosen[0]]), place)
            tick, heard = m.next_tick(place), slots[chosen]
            if in_cta:
                heard = heard[heard // m.width == at // m.shared.stride]
            clock = Clock(m.knowledge.take_snapshot(heard, tick))
            bar.touched[place] = bar.touched.get(place, 0) + len(chosen)
            together = int(count[chosen].sum())
            if together <= bar.pending and int(count[chosen].min()) > 0:  # the phase ends behind the last of them, if at all
                phases[chosen] = bar.phase
                count_arrival(bar, clock, int(nbytes[chosen].sum()), together)
                self.advance(bar)
                continue
            for i in chosen.tolist():
                phases[i] = bar.phase
                bar.bytes += int(nbytes[i])
                for _ in range(int(count[i])):
                    if bar.pending:
                        count_arrival(bar, clock)
                    else:
                        self._report_excess(bar, int(slots[i]), place)
                    self.advance(bar)
        return phases

    def _report_excess(self, bar: Mbarrier, slot: int, place: int) -> None:
        """Report an arrival beyond the count."""
        m = self.machine
        found = find_excess_arrival(bar, describe_thread(m, slot + m.knowledge.first), make_span(m, place), True)
        if found is not None:
            m.findings.add(found.code, found.message, found.span, found.hint, found.notes)

    def expect(self, slots: Array, places: Array, nbytes: Array, place: int) -> None:
        """Add to the bytes that phases lack; less if negative."""
        for slot, at, n in zip(slots.tolist(), places.tolist(), nbytes.tolist()):
            bar = self.find(at, slot, place)
            bar.bytes += n
            bar.touched[place] = bar.touched.get(place, 0) + 1
            self.advance(bar)

    def advance(self, bar: Mbarrier) -> None:
        """End the phase if it is complete."""
        if is_complete(bar):
            end_phase(bar)
            bar.bytes = 0
            bar.touched.clear()
            self.machine.idle = 0
            self.machine.sleepers.wakes += 1

    def test(self, slots: Array, places: Array, wanted: Array, by_parity: bool, place: int) -> Array:
        """Return whether phases are over; threads that see it know what arrivals knew, others sleep."""
        m = self.machine
        done = np.zeros(len(slots), np.bool_)
        for at in np.unique(places).tolist():
            chosen = np.flatnonzero(places == at)
            bar = self.find(at, int(slots[chosen[0]]), place)
            wants = wanted[chosen].astype(np.int64)
            over = (wants & 1) != (bar.phase & 1) if by_parity else wants < bar.phase
            done[chosen] = over
            if over.any() and bar.phase:
                m.knowledge.learn(slots[chosen[over]], bar.phase_order.times)
            if not over.all():
                m.sleepers.put_to_sleep(slots[chosen[~over]], bar)
        return done

    def finish(self) -> None:
        """Report copies that nobody waited for."""
        m = self.machine
        for copies in m.copies:
            if copies.open.any():
                who = describe_thread(m, int(copies.slots[copies.open][0]) + m.knowledge.first)
                m.findings.add(
                    "M403",
                    f"nobody waited for the copy (cp.async) of {who}: it may be in flight when the kernel ends",
                    make_span(m, copies.place),
                    "every copy is waited for before the end",
                )
