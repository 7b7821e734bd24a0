"""Engines that act for threads: bulk copies, when they act, and what orders an engine's accesses.

Bytes that land on an mbarrier are ordered by its phase: the barrier's engine has an entry in clocks. What a group holds is
over for the thread that waits for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...sync.phases import find_excess_bytes
from .findings import describe_engine, describe_thread, make_span, report_engine_meeting
from .groups import find_slice, list_distinct
from .knowledge import ALWAYS, Event, Knowledge, are_among
from .memories import IN_FLIGHT, NOTHING, OUTSIDE, Memory
from .operands import Array
from .program import SHARED_BASE

Move = Callable[[], None]
Landings = set[Event]
MOST_PIECES = 64  # runs of entries with one tick that are looked at one by one
MOST_TOLD = 8  # findings of a kind, of two instructions with each other; more would be told as these


@dataclass
class EngineRead:
    """What an engine reads of shared memory.

    Attributes:
        threads: Those that issued it.
        over: Tick at which they knew it to be over.
    """

    threads: Array
    place: int
    over: int | None = None


@dataclass(eq=False)
class Transfer:
    """A bulk copy.

    Attributes:
        move: Function that moves the bytes.
        memory, entries: What it writes, as entries of the shadow when it was issued.
        barrier: Place of the mbarrier that it lands on; None for one of a group.
        read: What it reads of shared memory.
        map_read: That it reads its tensor map, if that lies in global memory.
    """

    slot: int
    place: int
    tick: int
    move: Move
    memory: Memory
    entries: Array
    nbytes: int
    barrier: int | None
    read: EngineRead | None
    map_read: EngineRead | None = None
    moved: bool = False
    shift: int = 0  # of the shadow then; single bytes may get entries before the copy lands


@dataclass
class Copies:
    """The asynchronous copies (cp.async) of one instruction, by several threads.

    Attributes:
        groups: Number of the group that each belongs to.
        sources, targets: Byte places.
        taken: Bytes that are read of the source, the rest is zeros.
        data: The bytes, if they were read when the copies were issued.
        open: Which have not landed.
    """

    slots: Array
    groups: Array
    sources: Array
    targets: Array
    nbytes: int
    taken: Array
    place: int
    data: Array | None
    open: Array


@dataclass(frozen=True)
class Fence:
    """A proxy fence: what its threads knew then."""

    slots: Array
    tick: int
    place: int
    spaces: tuple[str, ...]
    known: Knowledge


@dataclass
class BulkGroups:
    """Bulk groups of a thread: those that are committed, and copies that are not."""

    committed: list[list[Transfer]] = field(default_factory=list)
    open: list[Transfer] = field(default_factory=list)


class Engines:
    """The engines of a machine."""

    def __init__(self, machine: Any):  # the Machine, whose module imports this one
        self.machine = machine
        self.late: list[Transfer] = []
        self.groups: dict[int, BulkGroups] = {}
        self.fences: list[Fence] = []
        self.issuers: dict[int, int] = {}  # by the tick at which bytes landed
        self.reads: list[EngineRead] = [EngineRead(np.zeros(0, np.int64), 0, 0)]
        self.landed: dict[int, Transfer] = {}  # the last on each mbarrier's engine
        self.landed_at: dict[int, int] = {}
        self.waited: set[tuple[int, int, int]] = set()  # landings that threads know
        self.told: Counter[tuple[int, int, bool]] = Counter()

    # ---- proxies
    def fence(self, slots: Array, place: int, spaces: tuple[str, ...]) -> None:
        """Note a proxy fence."""
        m = self.machine
        self.fences.append(Fence(slots, m.next_tick(place), place, spaces, m.knowledge.copy_of(slots)))
        if "global" in spaces:
            m.global_fences.append((slots + m.knowledge.first, m.tick))

    def is_fenced(self, slot: int, thread: int, tick: int, space: str) -> bool:
        """Return whether a proxy fence lies between an access and what a thread, by its slot, does now.

        It may be one of either thread or of a third one: what it knew is behind it, and it is known now.
        """
        m = self.machine
        own = slot + m.knowledge.first
        later = [f for f in self.fences if f.tick > tick and space in f.spaces]

        def is_before(other: int, fence: Fence) -> bool:
            return other == own or m.knowledge.is_known(slot, (other, fence.tick))

        if any(thread - m.knowledge.first in f.slots and is_before(thread, f) for f in later):
            return True
        for fence in reversed(later):
            for i, other in enumerate((fence.slots + m.knowledge.first).tolist()):
                if is_before(other, fence) and fence.known.is_known(i, (thread, tick)):
                    return True
        return False

    # ---- accesses of engines
    def check(self, memory: Memory, slots: Array, entries: Array, mode: str, place: int, issuers: Array | None = None) -> None:
        """Check what an engine accesses for threads; mode: "read", "write" or "add".

        issuers: those that start a product together: it comes behind what each of them did before.
        """
        m, shadow, slot = self.machine, memory.shadow, int(slots[0])
        if shadow is None or not len(entries):
            return
        at = find_slice(entries) if issuers is None else entries  # those of copies increase
        ticks = shadow.written[at]
        lowest = int(ticks.min())
        if lowest <= OUTSIDE:
            who = self._describe(slot, place)
            address = (int(entries[int(ticks.argmin())]) << shadow.shift) + memory.base
            where = m.describe_nearest(address) if memory is m.global_memory else ""
            raise m.findings.stop("M402", f"{who} accesses {address:#x}, outside of {memory.name} memory{where}", make_span(m, place))
        if not m.launch.detect:
            return
        if lowest == NOTHING and mode == "read":
            m.findings.add_unwritten(self._describe(slot, place), memory.name, make_span(m, place))
        if int(ticks.max()) > 0:
            threads = shadow.writer[at]
            if lowest <= 0:
                threads, ticks = threads[ticks > 0], ticks[ticks > 0]
            changes = np.concatenate([[True], (ticks[1:] != ticks[:-1]) | (threads[1:] != threads[:-1])])
            self._check_writes(slots, threads[changes], ticks[changes], (place, mode, memory.name), issuers)
        if mode != "read":
            own = np.array([slot])

            def report(meeting: Any) -> None:
                report_engine_meeting(m, slot, place, mode, (meeting.thread, meeting.tick, "read"), memory.name)

            shadow.check_reads(own, entries[None], False, report)
            self.check_reads(memory, own, entries[None], mode, place)

    def _describe(self, slot: int, place: int) -> str:
        """Describe an engine by what it does, and for whom."""
        return f"{describe_engine(self.machine, place)[0]} of {describe_thread(self.machine, slot + self.machine.knowledge.first)}"

    def _check_writes(self, slots: Array, threads: Array, ticks: Array, access: tuple[int, str, str], issuers: Array | None) -> None:
        """Check an access (place, mode, memory) by an engine for threads against earlier writes."""
        m = self.machine
        place, mode, memory = access
        own = np.zeros(len(threads), np.bool_) if issuers is None else are_among(threads - m.knowledge.first, issuers)
        ordered = np.logical_and.reduce([self._find_ordered(slot, threads, ticks, memory, own) for slot in slots.tolist()])
        for thread, tick in sorted(set(zip(threads[~ordered].tolist(), ticks[~ordered].tolist()))):
            issuer = thread - m.knowledge.first
            for mine in slots.tolist() if issuers is None or issuer not in issuers else [issuer]:
                known = tick < IN_FLIGHT and (mine == issuer or m.knowledge.is_known(mine, (thread, tick)))
                kind = place, m.find_place(tick), known  # a race, or a missing fence
                if self.told[kind] < MOST_TOLD and not (known and self._is_ordered(mine, thread, tick, memory)):
                    report_engine_meeting(m, mine, place, mode, (thread, tick, "write"), memory)
                    self.told[kind] += 1
                    break

    def _find_ordered(self, slot: int, threads: Array, ticks: Array, space: str, own: Array) -> Array:
        """Return which writes are known to a thread, with a proxy fence by their own threads behind them; others may be as well.

        own: those by threads that start the access with it.
        """
        m = self.machine
        known = np.where(own, ALWAYS, m.knowledge.find_known(slot, threads))
        fenced, oldest = np.zeros(len(threads), np.bool_), int(ticks.min())
        for fence in reversed(self.fences):
            if fence.tick <= oldest:
                break
            if space in fence.spaces:
                fenced |= (ticks < fence.tick) & (fence.tick <= known) & are_among(threads - m.knowledge.first, fence.slots)
                if fenced.all():
                    break
        return fenced & (ticks <= known)

    def find_landings(self, memory: Memory, entries: Array) -> Landings | None:
        """Return the bulk copies that wrote entries, as the mbarriers' threads and ticks; None if others wrote some, or one has not landed."""
        m, shadow = self.machine, memory.shadow
        assert shadow is not None
        ticks = shadow.written[entries]
        starts = np.flatnonzero(ticks[1:] != ticks[:-1]) + 1
        if len(starts) > MOST_PIECES:
            return None
        firsts = [0, *starts.tolist()]
        found = set(zip(shadow.writer[entries[firsts]].tolist(), ticks[firsts].tolist()))
        landed = all(0 < tick < IN_FLIGHT and thread >= m.knowledge.total and tick in self.issuers for thread, tick in found)
        return found if landed and all(describe_engine(m, m.places[tick])[2] == "async" for _, tick in found) else None

    def knows_landings(self, slots: Array, landings: Landings | None) -> bool:
        """Return whether threads have waited for the phases of the mbarriers that copies landed on."""
        if landings is None:
            return False
        for thread, tick in landings:
            key = tick, int(slots[0]), len(slots)
            if key not in self.waited:
                if not all(self.machine.knowledge.is_known(s, (thread, tick)) for s in slots.tolist()):
                    return False
                self.waited.add(key)
        return True

    def _is_ordered(self, slot: int, thread: int, tick: int, memory: str) -> bool:
        """Return whether an engine's access for a thread comes behind a write, and a fence where one is needed."""
        m = self.machine
        if not (thread == slot + m.knowledge.first or m.knowledge.is_known(slot, (thread, tick))):
            return False
        return describe_engine(m, m.places[tick])[2] == "async" or self.is_fenced(slot, thread, tick, memory)

    def check_reads(self, memory: Memory, slots: Array, entries: Array, mode: str, place: int) -> None:
        """Check new writes of entries [threads, n] against what engines read there."""
        m, shadow = self.machine, memory.shadow
        assert shadow is not None
        ctas = slots // m.width
        if ctas[0] != ctas[-1]:  # most meet reads for their own CTA alone
            for cta in list_distinct(ctas):
                self.check_reads(memory, slots[ctas == cta], entries[ctas == cta], mode, place)
            return
        for last in shadow.engine_reads.values():
            numbers = last[entries]
            newest = int(numbers.max())
            if not newest:
                continue
            found = [newest] if int(numbers.min()) == newest else np.unique(numbers[numbers > 0]).tolist()
            if self._are_over(slots[numbers.any(1)], [self.reads[n] for n in found]):
                found = []
            for number in found:
                read = self.reads[number]
                lanes = np.flatnonzero((numbers == number).any(1))
                if read.over is None:
                    late = lanes[:1]
                else:
                    late = lanes[~m.knowledge.are_over(slots[lanes], read.threads, read.over)]
                if len(late):
                    old = (int(read.threads[0]), read.over, "read")
                    report_engine_meeting(m, int(slots[late[0]]), place, mode, old, memory.name, read.place)
            last[entries] = 0

    def _are_over(self, slots: Array, reads: Sequence[EngineRead]) -> bool:
        """Return whether threads know that reads for the same threads are over: they do if they know the last one to be."""
        first, overs = reads[0].threads, [r.over for r in reads if r.over is not None]
        if len(overs) < len(reads) or any(len(r.threads) != len(first) or r.threads[0] != first[0] for r in reads):
            return False
        return bool(self.machine.knowledge.are_over(slots, first, max(overs)).all())

    def enter_read(self, slots: Array, parts: Sequence[Array], place: int) -> EngineRead:
        """Record what an engine reads of shared memory for threads: parts of entries."""
        m = self.machine
        read = EngineRead(slots + m.knowledge.first, place)
        shadow = m.shared.shadow
        assert shadow is not None
        issuer = 2 * (int(slots[0] % m.width) >> 5) + (len(slots) > 1)
        if issuer not in shadow.engine_reads:
            shadow.engine_reads[issuer] = np.zeros(len(shadow.written), np.int32)
        last = shadow.engine_reads[issuer]
        for entries in parts:
            last[entries] = len(self.reads)
        self.reads.append(read)
        return read

    # ---- bulk copies
    def acts_early(self) -> bool:
        """Return whether an engine acts when it is asked, or as late as it may."""
        m = self.machine
        return m.kind in ("together", "first") or (m.kind == "random" and m.random.random() < 0.5)

    def issue(self, t: Transfer) -> None:
        """Start a copy."""
        m = self.machine
        shadow = t.memory.shadow
        if m.launch.detect and shadow is not None:
            t.shift, at = shadow.shift, find_slice(t.entries) if len(t.entries) else t.entries
            shadow.writer[at] = t.slot + m.knowledge.first
            shadow.written[at] = IN_FLIGHT + t.tick
            shadow.write_strong[at] = False
        if t.barrier is None:
            self.groups.setdefault(t.slot, BulkGroups()).open.append(t)
        if self.acts_early():
            self.act(t)
        else:
            self.late.append(t)

    def join(self, t: Transfer, slot: int) -> None:
        """Add a copy to the open group of another thread, which issued the same one."""
        self.groups.setdefault(slot, BulkGroups()).open.append(t)

    def act(self, t: Transfer) -> None:
        """Move the bytes of a copy; on an mbarrier it lands."""
        if t.moved:
            return
        t.moved = True
        t.move()
        if t.barrier is None:
            return
        m = self.machine
        bar = m.barriers.find(t.barrier, t.slot, t.place)
        m.clusters.check_landing(t.barrier // m.shared.stride, t.slot, t.place)
        tick = m.next_tick(t.place)
        for read in (t.read, t.map_read):
            if read is not None:  # over for who waits for the phase
                read.threads, read.over = np.array([bar.engine]), tick
        self._settle(t, bar.engine, tick)
        self.issuers[tick] = t.slot + m.knowledge.first
        self.landed[bar.engine], self.landed_at[bar.engine] = t, tick
        bar.order.learn((bar.engine, tick))
        bar.bytes -= t.nbytes
        found = find_excess_bytes(bar, make_span(m, t.place), describe_engine(m, t.place)[0])
        if found is not None:
            m.findings.add(found.code, found.message, found.span, found.hint, found.notes)
        m.barriers.advance(bar)

    def _settle(self, t: Transfer, writer: int, tick: int) -> None:
        """Give what a copy wrote its tick, where nothing was written since."""
        shadow = t.memory.shadow
        if not self.machine.launch.detect or shadow is None:
            return
        entries = t.entries if t.shift == shadow.shift else (4 * t.entries.reshape(-1, 1) + np.arange(4)).reshape(-1)
        at = find_slice(entries) if len(entries) else entries
        mine = shadow.written[at] == IN_FLIGHT + t.tick
        if not mine.all():
            at = entries[mine]
        shadow.writer[at], shadow.written[at] = writer, tick

    def act_late(self) -> bool:
        """Let late engines act: all, or one of them under a random schedule; return whether there was one."""
        m = self.machine
        self.late = [t for t in self.late if not t.moved]
        if not self.late:
            return False
        if m.kind == "random":
            self.act(self.late.pop(m.random.randrange(len(self.late))))
        else:
            self.act(self.late.pop(0))
        return True

    def commit(self, slots: Array) -> None:
        """Close the bulk group of threads."""
        for slot in slots.tolist():
            groups = self.groups.setdefault(slot, BulkGroups())
            groups.committed.append(groups.open)
            groups.open = []

    def wait(self, slots: Array, keep: int, reads_only: bool, place: int) -> None:
        """Let threads wait until all bulk groups but the last few are over, or have read their sources."""
        m = self.machine
        tick = m.next_tick(place)
        for slot in slots.tolist():
            groups = self.groups.get(slot)
            if groups is None:
                continue
            over = groups.committed[: max(0, len(groups.committed) - keep)]
            for t in (t for group in over for t in group):
                self.act(t)
                for read in (t.read, t.map_read):
                    if read is not None and read.over is None:
                        read.over = tick
                if not reads_only:
                    landing = m.next_tick(t.place)
                    self._settle(t, slot + m.knowledge.first, landing)
            if not reads_only:
                del groups.committed[: len(over)]

    def finish(self) -> None:
        """Let all engines act, and report bytes that landed and that nobody waited for; stores are over with the kernel."""
        m = self.machine
        self._warn_of_readers()
        while self.act_late():
            pass
        for engine, t in self.landed.items():
            if not any(c[engine] >= self.landed_at[engine] for c in m.knowledge.list_clocks()):
                what = f"{describe_engine(m, t.place)[0]} of {describe_thread(m, t.slot + m.knowledge.first)}"
                m.findings.add(
                    "M403",
                    f"nobody waited for {what}: it may be in flight when the kernel ends",
                    make_span(m, t.place),
                    "every copy is waited for before the end",
                )

    def _warn_of_readers(self) -> None:
        """Warn of stores that may read shared memory behind the end of their CTA: no thread has waited for their group."""
        m = self.machine
        for slot, groups in self.groups.items():
            for t in (t for group in (*groups.committed, groups.open) for t in group):
                if t.read is not None and t.read.over is None:
                    m.findings.warn(
                        "M416",
                        f"{describe_engine(m, t.place)[0]} of {describe_thread(m, slot + m.knowledge.first)} may read shared memory when its CTA has ended",
                        make_span(m, t.place),
                        "cp.async.bulk.wait_group.read 0 by the thread that issued it, before the end",
                    )


def get_shared_address(m: Any, place: int) -> int:
    """Return the address in its CTA of a byte place in shared memory."""
    return place % m.shared.stride + SHARED_BASE
