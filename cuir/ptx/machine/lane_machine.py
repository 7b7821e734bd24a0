"""The machine: runs the CTAs of a launch together, block by block, in the order of a schedule."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ...text.diagnostics import CuirError
from ...text.phrases import count_noun
from ...text.source import Source, Span
from ..isa.memory_forms import MemoryAccess
from ..isa.warp_wide import pack_lanes
from .barrier_phases import Barriers, Mbarrier, Sleepers
from .clusters import Clusters
from .copy_engines import Copies, Engines
from .findings import EarlierStore, Findings, describe_thread, make_span, report_meeting
from .groups import Group, PartRegisters, find_slice, list_distinct
from .knowledge import Event, Knowledge
from .memories import IN_FLIGHT, NOTHING, OUTSIDE, Meeting, Memory, Shadow
from .operands import Array
from .products import Products
from .program import CONST_BASE, CTA_STEP, EXIT, LOCAL_WINDOW, PARAM_BASE, SHARED_BASE, SHARED_WINDOW, Block, Program
from .special_registers import make_special
from .tensor_map_proxy import TensorMapProxy

SCHEDULES = ("together", "first", "last", "random")
MOST_STEPS = 5_000_000  # blocks that the CTAs of one machine may run
ENGINES_OF_A_CTA, MOST_ENGINES = 64, 8192  # mbarriers with a clock's entry of their own; more of them share one
MOST_NOTES = 6  # arrivals that a deadlock lacks
MOST_WAKES = 8  # times that all threads look in vain at the barriers that they wait for
PATIENCE, LEAST_PATIENCE = 512, 8  # blocks that run while threads wait that could go on: at first, and where that was needed


@dataclass(frozen=True)
class Launch:
    """How a kernel is launched.

    Attributes:
        grid, block: CTAs, and threads of a CTA, along x, y, z.
        shared: Bytes of shared memory that the launch adds.
        parameters: Bytes of the parameters.
        schedule: "together", "first", "last", or "random:SEED".
        detect: Whether races and reads of unwritten memory are found.
        cluster: CTAs of a cluster along x, y, z.
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int = 0
    parameters: bytes = b""
    schedule: str = "together"
    detect: bool = True
    cluster: tuple[int, int, int] = (1, 1, 1)

    def find_cta(self, number: Array) -> tuple[Array, Array, Array]:
        """Return the places along x, y, z of CTAs by their numbers, which count cluster by cluster."""
        (cx, cy, cz), (gx, gy, _) = self.cluster, self.grid
        which, rank = number // (cx * cy * cz), number % (cx * cy * cz)
        across, down = gx // cx, gy // cy
        return (
            which % across * cx + rank % cx,
            which // across % down * cy + rank // cx % cy,
            which // (across * down) * cz + rank // (cx * cy),
        )


@dataclass
class Counts:
    """What a launch has run: blocks, instructions, instructions times lanes, and the instructions that ran."""

    blocks: int = 0
    instructions: int = 0
    lanes: int = 0
    ran: set[int] = field(default_factory=set)


class Ready(NamedTuple):
    """Threads that can run a block.

    Attributes:
        ended: How often threads had ended then.
        wakes: The sleepers' count of wakes then; -1 if none of these threads slept.
    """

    ended: int
    wakes: int
    slots: Array


class Machine:
    """CTAs that run together.

    Attributes:
        ctas: Numbers of the CTAs, which count cluster by cluster.
        width: Threads of a CTA, rounded up to whole warps.
        alive: Which threads have not ended.
        at: Threads that stand before a block, by block.
        tick: Number of the last access or synchronisation; `places` has the instruction of each.
    """

    def __init__(self, program: Program, launch: Launch, ctas: range, shared_state: SharedState):
        self.program, self.launch, self.ctas = program, launch, ctas
        self.global_fences = shared_state.fences
        self.findings, self.places, self.counts = shared_state.findings, shared_state.places, shared_state.counts
        self.releases = shared_state.releases
        for key in [k for k in self.releases if k < 0]:  # of the shared memory of CTAs that have ended
            del self.releases[key]
        self.ptx_source = shared_state.ptx_source
        threads = int(np.prod(launch.block))
        self.threads = threads
        self.width = -(-threads // 32) * 32
        self.count = len(ctas) * self.width
        total = int(np.prod(launch.grid)) * self.width
        engines = min(MOST_ENGINES, int(np.prod(launch.grid)) * ENGINES_OF_A_CTA) if program.has_mbarriers else 0
        self.earlier = shared_state.earlier
        self.knowledge = Knowledge(ctas.start * self.width, self.count, self.width, total, engines, bool(self.earlier))
        shared_state.knowledge[:] = [self.knowledge]
        if self.earlier and (writers := shared_state.global_memory.shadow) is not None:
            writers.writer[writers.writer < 0] = self.knowledge.size - 1
        self.global_memory, self.constants = shared_state.global_memory, shared_state.constants
        self.parameters = Memory("param", PARAM_BASE, len(launch.parameters), 1, None)
        self.parameters.bytes[: len(launch.parameters)] = np.frombuffer(launch.parameters, np.uint8)
        size = program.shared_bytes + launch.shared
        stride = -(-size // 16) * 16 or 16
        in_clusters = launch.cluster != (1, 1, 1)
        shadow = Shadow(stride * len(ctas), NOTHING if launch.detect else 0, lambda: self.knowledge, in_clusters)
        self.shared = Memory("shared", SHARED_BASE, size, len(ctas), shadow)
        if shared_state.fill is not None:
            self.shared.bytes[:] = np.random.default_rng(shared_state.fill).integers(0, 256, len(self.shared.bytes), np.uint8)
        self.shared_size = size
        self.local = Memory("local", 0, program.local_bytes, self.count, None)
        local_thread = np.arange(self.count) % self.width
        self.alive = local_thread < threads
        self.all_slots = np.flatnonzero(self.alive)
        self.whole = len(self.all_slots) == self.count
        zeros = {t: np.zeros(self.count, t) for t in set(program.file.types)}
        self.regs: list[Array] = [zeros[t] for t in program.file.types]
        self.owned: set[int] = set()
        self.at: dict[int, Array] = {0: self.all_slots}
        self.returns: dict[str, tuple[Array, dict[int, list[tuple[int, int, int]]]]] = {}
        self.sleepers = Sleepers(self.count)
        self.barriers = Barriers(self)
        self.clusters = Clusters(self)
        self.engines = Engines(self)
        self.tensor_maps = TensorMapProxy(self)
        self.products = Products(self)
        self.warpgroups = np.arange(self.count) // self.width * (self.width // 128 + 1) + np.arange(self.count) % self.width // 128
        self.specials: dict[str, Array] = {}
        self.copies: list[Copies] = []
        self.commits = np.zeros(self.count, np.int64)
        self.fences = np.zeros(self.count, np.int64)
        self.seen_releases: dict[int, Array] = {}
        kind, _, seed = launch.schedule.partition(":")
        self.kind, self.random = kind, random.Random(f"{seed}/{ctas.start}")
        self.idle, self.started = 0, self.counts.blocks
        self.since: dict[int, int] = {}  # when threads came to a block, in blocks run
        self.patience = PATIENCE
        self.ended, self.ready = 0, dict[int, Ready]()

    @property
    def tick(self) -> int:
        return len(self.places) - 1

    def next_tick(self, place: int) -> int:
        """Count an access or a synchronisation of an instruction."""
        self.places.append(place)
        return len(self.places) - 1

    # ---- the run
    def run(self) -> None:
        """Run all threads to their end. Raises CuirError with all findings if that is impossible."""
        choose = {"together": self._choose_together, "first": self._choose_one, "last": self._choose_one, "random": self._choose_any}[
            self.kind
        ]
        while self.at:
            if self.kind == "random" and self.engines.late and self.random.random() < 0.1:
                self.engines.act_late()
            index, slots = self._choose_starved() or choose()
            self._run_block(self.program.blocks[index], slots)
            if self.counts.blocks - self.started > MOST_STEPS:
                place = self.program.blocks[index].first
                raise self.findings.stop(
                    "D402", f"the CTAs that run together have run {MOST_STEPS:,} blocks of code and have not ended", make_span(self, place)
                )
        if self.barriers.list_waiting() or self.clusters.waiting:  # for threads that have ended
            raise self._make_deadlock()
        self.finish()

    def _choose_starved(self) -> tuple[int, Array] | None:
        """Return the block at which threads have waited too long: a loop may wait for what they do next."""
        if len(self.at) < 2:
            return None
        now = self.counts.blocks
        index = min(self.at, key=lambda n: self.since.get(n, 0))
        if now - self.since.get(index, 0) < self.patience:
            return None
        self.since[index] = now
        slots = self._ready(index)
        if not len(slots):
            return None
        self.patience = max(LEAST_PATIENCE, self.patience // 2)
        return index, slots

    def _ready(self, index: int) -> Array:
        """Return the threads that can run a block; what was found stays so until other threads stand there, wake up or end."""
        slots, kept = self.at[index], self.ready.get(index)
        if kept is not None and kept.ended == self.ended and kept.wakes in (-1, self.sleepers.wakes):
            return kept.slots
        awake = self.sleepers.find_awake(slots) if self.sleepers.beds and len(slots) else slots
        found = self._find_meeting(self.program.blocks[index], awake)
        self.ready[index] = Ready(self.ended, -1 if awake is slots else self.sleepers.wakes, found)
        return found

    def _find_meeting(self, block: Block, slots: Array) -> Array:
        """Return those of some threads that stand before a block with all that they must run it with."""
        if not block.meets or not len(slots):
            return slots
        here = np.zeros(self.count, np.bool_)
        here[slots] = True
        lanes, alive = here.reshape(-1, 32), self.alive.reshape(-1, 32)
        whole = (lanes == alive).all(1)
        if block.meets == "warpgroup":
            count = int(self.warpgroups[-1]) + 1
            alive_in = np.bincount(self.warpgroups, self.alive, count)
            return slots[(np.bincount(self.warpgroups, here, count) == alive_in)[self.warpgroups[slots]]]
        if block.meets == "warp" or block.mask is None:
            return slots if whole.all() else slots[whole[slots >> 5]]
        if whole[slots >> 5].all():
            return slots
        group = self._make_group(slots)
        masks = group.spread(block.mask(group))
        needed = masks & pack_lanes(alive)[slots >> 5]
        return slots[(needed & ~pack_lanes(lanes)[slots >> 5]) == 0]

    def _choose_together(self) -> tuple[int, Array]:
        """Return the first block in the order that can run, and all threads that stand there."""
        blocks = self.program.blocks
        for index in sorted(self.at, key=lambda n: blocks[n].order) if len(self.at) > 1 else list(self.at):
            slots = self._ready(index)
            if len(slots):
                return index, slots
        self._wake()
        return self._choose_together()

    def _choose_one(self) -> tuple[int, Array]:
        """Return the block of the first or last warp that can go on, and the warp's threads there."""
        found: list[tuple[int, int, int, Array]] = []
        for index in self.at:
            slots = self._ready(index)
            if len(slots):
                warp = int(slots[0] if self.kind == "first" else slots[-1]) >> 5
                mine = slots[slots >> 5 == warp]
                if self.program.blocks[index].meets == "warpgroup":
                    mine = slots[self.warpgroups[slots] == self.warpgroups[mine[0]]]
                found.append((warp if self.kind == "first" else -warp, self.program.blocks[index].order, index, mine))
        if not found:
            self._wake()
            return self._choose_one()
        _, _, index, slots = min(found, key=lambda f: f[:2])
        return index, slots

    def _choose_any(self) -> tuple[int, Array]:
        """Return a block that can run, and some of the warps there, drawn from the seed."""
        ready = [(index, slots) for index in sorted(self.at) if len(slots := self._ready(index))]
        if not ready:
            self._wake()
            return self._choose_any()
        index, slots = ready[self.random.randrange(len(ready))]
        units = self.warpgroups[slots] if self.program.blocks[index].meets == "warpgroup" else slots >> 5
        found = list_distinct(units)
        if len(found) > 1 and self.random.random() < 0.7:
            count = self.random.randrange(1, len(found) + 1)
            chosen = np.zeros(found[-1] + 1, np.bool_)
            chosen[self.random.sample(found, count)] = True
            slots = slots[chosen[units]]
        return index, slots

    def _wake(self) -> None:
        """Let threads that sleep look at their barrier again. Raises CuirError if they did, and nothing has changed."""
        if self.engines.act_late():
            return
        if not self.sleepers.beds or self.idle > MOST_WAKES:
            raise self._make_deadlock()
        self.sleepers.wake()
        self.idle += 1

    def _make_group(self, slots: Array) -> Group:
        return Group(self, slots, self.regs if len(slots) == self.count else PartRegisters(self.regs, slots))

    def _run_block(self, block: Block, slots: Array) -> None:
        """Run a block for some of the threads that stand there."""
        standing = self.at.pop(block.index)
        self.ready.pop(block.index, None)
        if len(standing) != len(slots):
            stays = np.ones(len(standing), np.bool_)
            stays[np.searchsorted(standing, slots)] = False
            self.at[block.index] = standing[stays]
        if self.products.rows and (self.products.flying or block.product_writes):
            self.products.note_block(block, slots)
        if block.asked and self.products.accumulators:
            self.products.keep_results(block.asked, slots)
        group = self._make_group(slots)
        counts = self.counts
        counts.blocks += 1
        counts.instructions += block.last - block.first
        counts.lanes += (block.last - block.first) * group.n
        counts.ran.add(block.index)
        for step in block.steps:
            step(group)
        moves = block.end(group)
        whole = len(slots) == self.count
        if whole:
            self.owned.clear()
        else:
            self._scatter(block, group)
        if block.waits:
            self.barriers.settle()
            self.clusters.settle()
            return
        for target, chosen in moves:
            self.place(target, slots if chosen is None else slots[chosen])

    def _scatter(self, block: Block, group: Group) -> None:
        """Keep the registers of a part of the threads."""
        part = find_slice(group.slots)
        for r in block.scatters:
            value = group.regs.get(r)
            if value is None:
                continue
            if r not in self.owned:
                self.regs[r] = self.regs[r].copy()
                self.owned.add(r)
            self.regs[r][part] = value

    def set_register(self, register: int, slots: Array, values: Array) -> None:
        """Set a register of threads, whether or not they run a block now."""
        whole = self.regs[register]
        if register not in self.owned:
            whole = self.regs[register] = whole.copy()
            self.owned.add(register)
        whole[find_slice(slots)] = values.view(whole.dtype)

    def place(self, target: int, slots: Array) -> None:
        """Let threads stand before a block, or end."""
        if not len(slots):
            return
        if target == EXIT:
            self.alive[slots] = False
            self.ended += 1
            self.barriers.settle()
            if self.clusters.size > 1:
                self.clusters.settle()
                self.clusters.end_ctas(slots)
            return
        old = self.at.get(target)
        self.ready.pop(target, None)
        if old is None:
            self.since[target] = self.counts.blocks
            self.at[target] = slots
            return
        together = np.concatenate([old, slots])
        together.sort(kind="stable")
        self.at[target] = together

    def finish(self) -> None:
        """Check what must not be open when the CTAs end."""
        self.barriers.finish()
        self.engines.finish()
        self.products.finish()

    # ---- what findings ask
    def find_issuer(self, tick: int | None) -> int:
        """Return the thread that issued what landed at a tick."""
        return self.engines.issuers.get(tick or 0, 0)

    def find_place(self, tick: int | None) -> int:
        """Return the instruction of a tick."""
        tick = tick or 0
        return self.places[tick - IN_FLIGHT if tick >= IN_FLIGHT else tick]

    def is_fenced(self, slot: int, event: Event, memory: str) -> bool:
        """Return whether a proxy fence lies between an event and what a thread does now."""
        return self.engines.is_fenced(slot, *event, memory)

    def _make_deadlock(self) -> Exception:
        """Make the error of threads that can never go on."""
        waiting = [(index, slots, "stands at") for index, slots in self.at.items()]
        waiting += self.barriers.list_waiting() + [(w.block, w.slots, "wait for their cluster in") for w in self.clusters.waiting]
        waiting.sort(key=lambda w: -len(w[1]))
        notes: list[tuple[str, Span | None]] = []
        for index, slots, what in waiting[:6]:
            block = self.program.blocks[index]
            first = describe_thread(self, int(slots[0]) + self.knowledge.first)
            notes.append(
                (
                    f"{len(slots)} threads, the first {first}, {what} `{self.program.instructions[block.first][0].op}`",
                    make_span(self, block.first),
                )
            )
        for bar in self.sleepers.list_barriers():
            notes.append((self._describe_lack(bar), bar.span))
            notes += [(f"{count_noun(n, 'time')} in this phase, a thread came here", make_span(self, p)) for p, n in bar.touched.items()]
        notes += [("no thread has come to this arrival", make_span(self, p)) for p in self._list_missed_arrivals()]
        notes = list(dict.fromkeys(notes))
        meeting = next((w for w in waiting if self.program.blocks[w[0]].meets in ("warp", "warpgroup") and w[2] == "stands at"), None)
        span = notes[0][1] if notes else None
        if meeting is not None:
            span = make_span(self, self.program.blocks[meeting[0]].first)
            self.findings.add(
                "D401",
                f"not all lanes of a {self.program.blocks[meeting[0]].meets} come to an instruction that all must execute together",
                span,
                "no lane may take another way around it",
                notes,
            )
        else:
            self.findings.add("D401", "no thread can go on", span, "each barrier needs all arrivals that it counts", notes)
        return CuirError(self.findings.diagnostics)

    def _list_missed_arrivals(self) -> list[int]:
        """Return the arrivals at mbarriers that never ran, if threads wait at one."""
        blocks = [b for b in self.program.blocks if b.index not in self.counts.ran] if self.sleepers.list_barriers() else []
        places = (p for b in blocks for p in range(b.first, b.last))
        return [p for p in places if self.program.instructions[p][0].op.startswith("mbarrier.arrive")][:MOST_NOTES]

    @staticmethod
    def _describe_lack(bar: Mbarrier) -> str:
        """Describe what a phase of an mbarrier lacks."""
        lacks = [count_noun(bar.pending, "arrival")] if bar.pending else []
        if bar.bytes > 0:
            lacks.append(f"{count_noun(bar.bytes, 'byte')} that are expected and no copy brings")
        if bar.bytes < 0:
            lacks.append(f"the expectation of {count_noun(-bar.bytes, 'byte')} that copies brought")
        return f"phase {bar.phase} of `{bar.text}` lacks {' and '.join(lacks)}"

    # ---- calls
    def note_call(self, function: str, slots: Array, following: int, moves: list[tuple[int, int, int]]) -> None:
        """Note where threads go on after a function, and which results are copied then."""
        if function not in self.returns:
            self.returns[function] = (np.full(self.count, EXIT, np.int64), {})
        places, results = self.returns[function]
        places[slots] = following
        results[following] = moves

    def find_returns(self, function: str, slots: Array) -> list[tuple[int, Array | None]]:
        """Return where threads go on after a function."""
        places, results = self.returns[function]
        targets = places[slots]
        found: list[tuple[int, Array | None]] = []
        for target in np.unique(targets).tolist():
            chosen = np.flatnonzero(targets == target)
            for source, destination, size in results[target]:
                self.copy_local(slots[chosen], source, destination, size)
            found.append((target, chosen))
        return found

    def copy_local(self, slots: Array, source: int, target: int, size: int) -> None:
        """Copy bytes in the local memory of threads."""
        rows = self.local.bytes.reshape(-1, self.local.stride)
        rows[slots, target : target + size] = rows[slots, source : source + size]

    # ---- special registers
    def read_special(self, name: str, slots: Array) -> Array:
        """Return the values of a special register."""
        if name not in self.specials:
            self.specials[name] = make_special(self, name)
        values = self.specials[name]
        return values[slots] if values.ndim else values

    # ---- memory
    def find_memory(self, space: str, addresses: Array, n: int) -> tuple[Memory, Array]:
        """Return the memory that addresses lie in, and the addresses in it. A generic address tells by its window."""
        if space == "":
            first = int(addresses.reshape(-1)[0])
            if LOCAL_WINDOW <= first < LOCAL_WINDOW + (1 << 32):
                return self.local, addresses - LOCAL_WINDOW
            if SHARED_WINDOW <= first < SHARED_WINDOW + (1 << 32):
                return self.shared, addresses - SHARED_WINDOW
            space = (
                "param"
                if PARAM_BASE <= first < PARAM_BASE + (1 << 32)
                else "const"
                if CONST_BASE <= first < CONST_BASE + (1 << 32)
                else "global"
            )
        memories = {
            "global": self.global_memory,
            "shared": self.shared,
            "const": self.constants,
            "local": self.local,
            "param": self.parameters,
        }
        if space == "param" and int(addresses.reshape(-1)[0]) < PARAM_BASE:
            return self.local, addresses
        return memories[space], addresses

    def find_places(self, memory: Memory, g: Group, addresses: Array, nbytes: int, place: int) -> Array:
        """Return the byte places of accesses in a memory. Raises CuirError for an address outside of it, or not aligned."""
        offsets, owners = g.spread(addresses - memory.base), None
        if memory is self.shared and int(offsets.max()) >= CTA_STEP - SHARED_BASE:
            offsets, owners = self.clusters.find_owners(g, offsets, place)
        if int(offsets.min()) < 0 or int(offsets.max()) + nbytes > memory.size:
            lane = int(np.flatnonzero((offsets < 0) | (offsets + nbytes > memory.size))[0])
            raise self.report_outside(memory, g, lane, int(offsets[lane]) + memory.base, nbytes, place)
        if (offsets & (nbytes - 1)).any():
            lane = int(np.flatnonzero(offsets & (nbytes - 1))[0])
            who = describe_thread(self, int(g.slots[lane]) + self.knowledge.first)
            raise self.findings.stop(
                "M402", f"the address {int(offsets[lane]) + memory.base:#x} of {who} must be a multiple of {nbytes}", make_span(self, place)
            )
        if memory is self.shared:
            return offsets + (g.ctas if owners is None else owners) * memory.stride
        return offsets + g.slots * memory.stride if memory is self.local else offsets

    def report_outside(self, memory: Memory, g: Group, lane: int, address: int, nbytes: int, place: int) -> Exception:
        """Enter an access outside of an allocation; return the error to raise."""
        who = describe_thread(self, int(g.slots[lane]) + self.knowledge.first)
        code = "M409" if memory is self.shared else "M402"
        where = f", which has {memory.size:,} bytes" if memory is not self.global_memory else ""
        nearest = self.describe_nearest(address) if memory is self.global_memory else ""
        return self.findings.stop(
            code, f"{who} accesses {nbytes} bytes at {address:#x}, outside of {memory.name} memory{where}{nearest}", make_span(self, place)
        )

    def describe_nearest(self, address: int) -> str:
        """Describe where an address lies from the nearest allocation."""
        allocations = self.global_memory.allocations  # type: ignore[attr-defined]
        if not allocations:
            return ""
        name, start, size = min(allocations, key=lambda a: min(abs(address - a[1]), abs(address - a[1] - a[2])))
        return (
            f": {address - start - size} bytes behind `{name}`" if address >= start + size else f": {start - address} bytes before `{name}`"
        )

    def check_access(
        self,
        memory: Memory,
        g: Group,
        places: Array,
        access: MemoryAccess,
        nbytes: int,
        place: int,
        repeats: Callable[[int], bool] | None = None,
    ) -> Array | None:
        """Check the accesses of a group to a memory with a shadow, and record them; return lanes that lost a place.

        repeats: tells whether a lane stores what lies there: threads that store one value by one instruction do not race.
        """
        shadow = memory.shadow
        if shadow is None:
            return None
        entries = shadow.find_entries(places, nbytes)
        ticks = shadow.written[entries]
        lowest = int(ticks.min())
        if lowest <= OUTSIDE:
            lane = int(np.flatnonzero((ticks <= OUTSIDE).any(1))[0])
            raise self.report_outside(memory, g, lane, int(places[lane]) + memory.base, nbytes, place)
        if not self.launch.detect:
            return None
        reads, writes = access.mode != "write", access.mode != "read"
        if lowest == NOTHING and reads:
            lane = int(np.flatnonzero((ticks == NOTHING).any(1))[0])
            who = describe_thread(self, int(g.slots[lane]) + self.knowledge.first)
            self.findings.add_unwritten(who, memory.name, make_span(self, place))
        tick = self.next_tick(place)

        def report(meeting: Meeting) -> None:
            if repeats is not None and meeting.mode == "write" and self.find_place(meeting.tick) == place and repeats(meeting.lane):
                return
            mode = "write" if writes else "read"
            report_meeting(self, meeting, int(g.slots[meeting.lane]), place, mode, access.strong, memory.name, "")

        shadow.check_write(g.slots, entries, access.strong, report, ticks)
        if writes:
            shadow.check_reads(g.slots, entries, access.strong, report)
            if shadow.engine_reads:
                self.engines.check_reads(memory, g.slots, entries, "write", place)
            if self.tensor_maps.reads and memory is self.global_memory:
                self.tensor_maps.check_writes(g.slots, places, nbytes, place)
            return shadow.enter_write(g.slots, entries, tick, access.strong)
        shadow.enter_read(g.slots, places, nbytes, tick, access.strong)
        return None

    def report_trap(self, place: int, slots: Array) -> None:
        """End the run at a trap, or at an assertion that fails."""
        who = describe_thread(self, int(slots[0]) + self.knowledge.first)
        op = self.program.instructions[place][0].op
        what = "fails an `assert`" if op.startswith("call") else f"executes `{op}`"
        raise self.findings.stop("D402", f"{who} {what}", make_span(self, place))


@dataclass
class SharedState:
    """State that the machines of one launch share.

    Attributes:
        fill: The seed of what lies in shared memory before anything is written; zeros if None.
        earlier: Stores of the launch before, if this one may begin before its end.
        fences: Threads and ticks of proxy fences for global memory.
    """

    global_memory: Memory
    constants: Memory
    findings: Findings
    ptx_source: Source
    knowledge: list[Knowledge] = field(default_factory=list)
    places: list[int] = field(default_factory=lambda: [0])
    counts: Counts = field(default_factory=Counts)
    releases: dict[int, tuple[Array, str, int]] = field(default_factory=dict)
    fill: int | None = None
    earlier: Sequence[EarlierStore] = ()
    fences: list[tuple[Array, int]] = field(default_factory=list)
