"""Actions on memory: loads, stores, atomics, asynchronous copies, fences, and moves between address spaces."""

from __future__ import annotations

import numpy as np

from ..isa.instruction_table import UnknownForm, get_width
from ..isa.memory_forms import MemoryAccess, find_atomic, read_access, read_atomic
from ..module import Address
from .actions_bulk import make_bulk_instruction
from .actions_cluster import make_async_store
from .actions_tensormap import make_map_fence
from .copy_engines import Copies
from .findings import report_meeting
from .groups import Group
from .lane_machine import Machine
from .lane_runs import make_lane_step, make_source
from .memories import IN_FLIGHT, Meeting, Memory
from .operands import Array, list_parts
from .program import CTA_STEP, LOCAL_WINDOW, SHARED_WINDOW, Binding, Step, action

WINDOWS = {"shared": SHARED_WINDOW, "shared__cta": SHARED_WINDOW, "shared__cluster": SHARED_WINDOW, "local": LOCAL_WINDOW}
RAW = {1: "b8", 2: "b16", 4: "b32", 8: "b64"}


def split_by_space(m: Machine, g: Group, access: MemoryAccess, addresses: Array) -> list[tuple[Memory, Array, Group, Array | None]]:
    """Return the memories that a group's addresses lie in: each with addresses, the threads, and which they are."""
    addresses = g.spread(addresses)
    if access.space == "":
        windows = np.where(addresses < 1 << 44, addresses >> 40, np.minimum(addresses >> 40, 0x7F))
        if (windows != windows[0]).any():
            parts = [np.flatnonzero(windows == w) for w in np.unique(windows)]
            return [(*m.find_memory("", addresses[p], 1), g.take(p), p) for p in parts]
    return [(*m.find_memory(access.space, addresses, 1), g, None)]


@action("ld", "ldu")
def make_load(b: Binding) -> Step:
    access = read_access(b.op, "read")
    destinations = list_parts(b.get(0))
    if len(destinations) != access.count:
        raise UnknownForm(f"the vector of `{b.op.text}`")
    address = b.reader.fetch_address(b.get(1))
    stores = [b.reader.store(d, access.type) for d in destinations]
    place, nbytes, element, count = b.place, access.element * access.count, access.element, access.count
    dtype = np.dtype(f"u{element}")
    own = np.dtype(_dtype(access.type))

    def load(g: Group) -> None:
        m: Machine = g.machine
        parts = split_by_space(m, g, access, address(g))
        whole = None if len(parts) == 1 else np.zeros((g.n, count) if count > 1 else g.n, dtype)
        for memory, addresses, part, chosen in parts:
            places = m.find_places(memory, part, addresses, nbytes, place)
            m.check_access(memory, part, places, access, nbytes, place)
            values = memory.gather(places, element, count)
            if access.strong:
                acquire(m, memory, part.slots, places, access)
            if whole is None or chosen is None:
                whole = values
            else:
                whole[chosen] = values
        assert whole is not None
        if count == 1:
            stores[0](g, whole.view(own))
        else:
            for i, store in enumerate(stores):
                store(g, np.ascontiguousarray(whole[:, i]).view(own))

    return load


def _dtype(name: str) -> str:
    """Return the NumPy type of a loaded element."""
    width = get_width(name) // 8
    return f"{'i' if name[0] == 's' else 'f' if name in ('f16', 'f32', 'f64') else 'u'}{width}"


@action("st")
def make_store(b: Binding) -> Step:
    if b.op.has("async"):
        return make_async_store(b)
    access = read_access(b.op, "write")
    values = [b.reader.fetch(o, access.type) for o in list_parts(b.get(1))]
    if len(values) != access.count:
        raise UnknownForm(f"the vector of `{b.op.text}`")
    address = b.reader.fetch_address(b.get(0))
    place, nbytes, element, count = b.place, access.element * access.count, access.element, access.count
    dtype = np.dtype(f"u{element}")

    def store(g: Group) -> None:
        m: Machine = g.machine
        data = [g.spread(np.asarray(v(g))).view(dtype) for v in values]
        packed = data[0] if count == 1 else np.stack(data, -1)
        for memory, addresses, part, chosen in split_by_space(m, g, access, address(g)):
            places = m.find_places(memory, part, addresses, nbytes, place)
            mine = packed if chosen is None else packed[chosen]

            def repeats(lane: int, memory: Memory = memory, places: Array = places, mine: Array = mine) -> bool:
                return bool((memory.gather(places[lane : lane + 1], element, count) == mine[lane]).all())

            lost = m.check_access(memory, part, places, access, nbytes, place, repeats)
            memory.scatter(places, mine, element, count)
            if lost is not None and lost.any() and not access.strong:
                report_lost(m, memory, part, places, mine, lost, (element, count, place))
            if access.strong:
                release(m, memory, part.slots, places, access, replaces=True)

    return store


def report_lost(m: Machine, memory: Memory, g: Group, places: Array, data: Array, lost: Array, form: tuple[int, int, int]) -> None:
    """Report lanes that store other values than another lane of the same instruction, at the same place."""
    element, count, place = form
    kept = memory.gather(places, element, count)
    differs = lost & ((kept != data) if count == 1 else (kept != data).any(-1))
    if not differs.any():
        return
    lane = int(np.flatnonzero(differs)[0])
    shadow = memory.shadow
    assert shadow is not None
    entry = shadow.find_entries(places[lane : lane + 1], element * count)[0, 0]
    other = int(shadow.writer[entry])
    report_meeting(
        m, Meeting(lane, int(places[lane]), other, m.tick, "write", False), int(g.slots[lane]), place, "write", False, memory.name, ""
    )


# ---- strong accesses
def get_release_key(memory: Memory, place: int) -> int:
    """Return the key of a place for releases: negative in shared memory."""
    return -place - 1 if memory.name == "shared" else place


def acquire(m: Machine, memory: Memory, slots: Array, places: Array, access: MemoryAccess) -> None:
    """Let threads that read a released value learn what the release published, now or at their next fence."""
    if not m.releases:
        return
    for slot, at in zip(slots.tolist(), places.tolist()):
        found = m.releases.get(get_release_key(memory, at))
        if found is None or (found[1] == "cta" and found[2] != (slot + m.knowledge.first) // m.width):
            continue
        if access.acquires:
            m.knowledge.learn(np.array([slot]), found[0])
        else:
            old = m.seen_releases.get(slot)
            m.seen_releases[slot] = found[0] if old is None else np.maximum(old, found[0])


def release(m: Machine, memory: Memory, slots: Array, places: Array, access: MemoryAccess, replaces: bool) -> None:
    """Publish what threads know with what they store; without `.release` what they knew at their last fence."""
    if not access.releases and not m.fences[slots].any():
        if replaces and m.releases:
            for at in places.tolist():
                m.releases.pop(get_release_key(memory, at), None)
        return
    for slot, at in zip(slots.tolist(), places.tolist()):
        until = m.tick if access.releases else int(m.fences[slot])
        if not until:
            continue
        clock = m.knowledge.take_snapshot(np.array([slot]), until)
        key = get_release_key(memory, at)
        old = m.releases.get(key)
        if old is not None and not replaces:
            clock = np.maximum(clock, old[0])
        m.releases[key] = (clock, access.scope, (slot + m.knowledge.first) // m.width)


def exchange_knowledge(m: Machine, memory: Memory, slots: Array, places: Array, access: MemoryAccess) -> None:
    """Let threads acquire and release by an atomic, one after another."""
    if not m.releases and not access.releases and not m.fences[slots].any():
        return
    for i in range(len(slots)):
        acquire(m, memory, slots[i : i + 1], places[i : i + 1], access)
        release(m, memory, slots[i : i + 1], places[i : i + 1], access, replaces=False)


@action("membar", "fence")
def make_fence(b: Binding) -> Step:
    place = b.place
    if b.op.has("proxy"):
        return make_proxy_fence(b)
    if b.op.has("mbarrier_init"):
        return make_init_fence(place)

    def fence(g: Group) -> None:
        m: Machine = g.machine
        m.fences[g.slots] = m.next_tick(place)
        mine = set(g.slots.tolist())
        for slot in [s for s in m.seen_releases if s in mine]:
            m.knowledge.learn(np.array([slot]), m.seen_releases.pop(slot))

    return fence


def make_init_fence(place: int) -> Step:
    """Make the step of a fence for the initialisation of mbarriers, which a relaxed arrival at the cluster's barrier publishes."""

    def fence(g: Group) -> None:
        m: Machine = g.machine
        m.clusters.init_fences[g.slots] = m.next_tick(place)

    return fence


def make_proxy_fence(b: Binding) -> Step:
    """Make the step of a proxy fence."""
    op, place = b.op, b.place
    if op.has("tensormap__generic"):
        return make_map_fence(b)
    if op.has("alias"):
        return lambda g: None  # orders aliases: there are none
    op.allow("proxy", "async", "global", "shared__cta", "shared__cluster")
    if not op.has("async"):
        raise UnknownForm(f"the instruction `{op.text}`")
    spaces = ("global",) if op.has("global") else ("shared",) if op.has("shared__cta", "shared__cluster") else ("shared", "global")
    return lambda g: g.machine.engines.fence(g.slots, place, spaces)


# ---- atomics
@action("atom", "red")
def make_atomic(b: Binding) -> Step:
    access = read_atomic(b.op)
    by_memory = {name: find_atomic(b.op, name) for name in ("global", "shared", "local")}
    returns = b.op.name == "atom"
    first = 1 if returns else 0
    address = b.reader.fetch_address(b.get(first))
    operands = [
        [b.reader.fetch(o, access.type) for o in list_parts(b.get(i))]
        for i in range(first + 1, min(len(b.instruction.operands), first + 3))
    ]
    if b.op.has("cas") != (len(operands) == 2):
        operands = operands[:1]
    stores = [b.reader.store(d, access.type) for d in list_parts(b.get(0))] if returns else []
    place, element, count = b.place, access.element, access.count
    nbytes, own, raw = element * count, np.dtype(_dtype(access.type)), np.dtype(f"u{element}")

    def run(g: Group) -> None:
        m: Machine = g.machine
        values = [np.stack([g.spread(np.asarray(v(g))).view(own) for v in group], -1) for group in operands]
        result = np.zeros((g.n, count), own)
        for memory, addresses, part, chosen in split_by_space(m, g, access, address(g)):
            places = m.find_places(memory, part, addresses, nbytes, place)
            m.check_access(memory, part, places, access, nbytes, place)
            mine = [v if chosen is None else v[chosen] for v in values]
            exchange_knowledge(m, memory, part.slots, places, access)
            old = combine_in_turn(memory, places, mine)
            if chosen is None:
                result = old
            else:
                result[chosen] = old
        for i, store in enumerate(stores):
            store(g, np.ascontiguousarray(result[:, i]))

    def combine_in_turn(memory: Memory, places: Array, values: list[Array]) -> Array:
        """Combine lane by lane where lanes meet, all others at once; return the old values."""
        combine = by_memory[memory.name]
        order = np.argsort(places, kind="stable")
        ordered = places[order]
        starts = np.r_[True, ordered[1:] != ordered[:-1]]
        rank = np.arange(len(order)) - np.maximum.accumulate(np.where(starts, np.arange(len(order)), 0))
        old = np.zeros((len(places), count), own)
        for turn in range(int(rank.max()) + 1):
            lanes = order[rank == turn]
            before = memory.gather(places[lanes], element, count).reshape(-1, count).view(own)
            new = combine(before, values[0][lanes], values[1][lanes] if len(values) > 1 else None)
            memory.scatter(places[lanes], (new[:, 0] if count == 1 else new).view(raw), element, count)
            old[lanes] = before
        return old

    return run


# ---- asynchronous copies
@action("cp")
def make_copy(b: Binding) -> Step:
    op, place = b.op, b.place
    if op.has("bulk"):
        return make_bulk_instruction(b)
    if not op.has("async") or op.has("reduce"):
        raise UnknownForm(f"the instruction `{op.text}`")
    if op.has("commit_group"):
        return commit
    if op.has("wait_group", "wait_all"):
        keep = b.get(0) if op.has("wait_group") else -1
        return lambda g: wait_for_copies(g.machine, g.slots, int(keep))
    if op.has("mbarrier"):
        return make_copy_arrival(b)
    op.allow("async", "ca", "cg", "shared", "shared__cta", "global", "L2__64B", "L2__128B", "L2__256B", "L2__cache_hint")
    target, source, size = b.reader.fetch_address(b.get(0)), b.reader.fetch_address(b.get(1)), b.get(2)
    if not isinstance(size, int):
        raise UnknownForm(f"the size of `{op.text}`")
    has_size = len(b.instruction.operands) > (4 if op.has("L2__cache_hint") else 3)
    taken = b.fetch(3, "u32") if has_size else None
    reading = MemoryAccess("read", "global", "b8", size, False, False, False, "sys")
    writing = MemoryAccess("write", "shared", "b8", size, False, False, False, "sys")

    def issue(g: Group) -> None:
        m: Machine = g.machine
        nbytes = g.spread(np.asarray(taken(g))).astype(np.int64) if taken is not None else np.full(g.n, size)
        sources, targets = g.spread(source(g)), m.find_places(m.shared, g, target(g), size, place)
        reads = np.flatnonzero(nbytes > 0)
        from_places = np.zeros(g.n, np.int64)
        if len(reads):
            part = g.take(reads)
            from_places[reads] = m.find_places(m.global_memory, part, sources[reads], size, place)
            for n in np.unique(nbytes[reads]).tolist():
                mine = reads[nbytes[reads] == n]
                m.check_access(m.global_memory, g.take(mine), from_places[mine], reading, n, place)
        m.check_access(m.shared, g, targets, writing, size, place)
        shadow = m.shared.shadow
        if m.launch.detect and shadow is not None:
            shadow.written[shadow.find_entries(targets, size)] += IN_FLIGHT
        copies = Copies(g.slots, m.commits[g.slots], from_places, targets, size, nbytes, place, None, np.ones(g.n, np.bool_))
        if m.kind == "first" or (m.kind == "random" and m.random.random() < 0.5):
            copies.data = read_sources(m, copies, np.arange(g.n))
        m.copies.append(copies)

    return issue


def read_sources(m: Machine, copies: Copies, lanes: Array) -> Array:
    """Return the bytes [lanes, n] that copies bring."""
    columns = np.arange(copies.nbytes)
    places = np.where(columns < copies.taken[lanes][:, None], copies.sources[lanes][:, None] + columns, 0)
    return np.where(columns < copies.taken[lanes][:, None], m.global_memory.bytes[places], np.uint8(0))


def land(m: Machine, copies: Copies, lanes: Array) -> None:
    """Let copies land, and be over for the threads that issued them."""
    data = copies.data[lanes] if copies.data is not None else read_sources(m, copies, lanes)
    m.shared.bytes[copies.targets[lanes][:, None] + np.arange(copies.nbytes)] = data
    copies.open[lanes] = False
    shadow = m.shared.shadow
    if m.launch.detect and shadow is not None:
        entries = shadow.find_entries(copies.targets[lanes], copies.nbytes)
        shadow.writer[entries] = (copies.slots[lanes] + m.knowledge.first)[:, None]
        shadow.written[entries] = m.next_tick(copies.place)


def commit(g: Group) -> None:
    """Close the group of each thread's copies."""
    g.machine.commits[g.slots] += 1


def wait_for_copies(m: Machine, slots: Array, keep: int) -> None:
    """Wait until at most `keep` groups of each thread are in flight; -1: until all copies are over."""
    waits = np.zeros(m.count, np.bool_)
    waits[slots] = True
    for copies in m.copies:
        over = copies.open & waits[copies.slots]
        if keep >= 0:
            over &= copies.groups < m.commits[copies.slots] - keep
        if over.any():
            land(m, copies, np.flatnonzero(over))
    m.copies[:] = [c for c in m.copies if c.open.any()]


def make_copy_arrival(b: Binding) -> Step:
    """Arrive at an mbarrier when the thread's copies are over: they land at once, which is one of their times."""
    address, place, noinc = b.reader.fetch_address(b.get(0)), b.place, b.op.has("noinc")

    def arrive(g: Group) -> None:
        m: Machine = g.machine
        wait_for_copies(m, g.slots, -1)
        _, addresses = m.find_memory("shared" if b.op.has("shared", "shared__cta") else "", g.spread(address(g)), 8)
        places = m.find_places(m.shared, g, addresses, 8, place)
        if not noinc:
            for at, slot in zip(places.tolist(), g.slots.tolist()):
                m.barriers.find(at, slot, place).pending += 1
        m.barriers.arrive_at(g.slots, places, np.ones(g.n, np.int64), np.zeros(g.n, np.int64), place)

    return arrive


# ---- addresses and moves
@action("cvta")
def make_address_conversion(b: Binding) -> Step:
    window = next((w for s, w in WINDOWS.items() if b.op.has(s)), 0)
    t = b.op.type
    symbol = isinstance(b.get(1), str) and b.reader.find_register(b.get(1)) is None
    value = b.reader.fetch(b.get(1), t) if not symbol else b.reader.fetch_address(Address(b.get(1), 0))
    store, shift = b.reader.store(b.get(0), t), -window if b.op.has("to") else window
    dtype = np.dtype(f"u{get_width(t) // 8}")
    return lambda g: store(g, np.asarray(value(g).astype(np.int64) + shift).astype(dtype))


def lies_in_own_cta(g: Group, addresses: Array) -> Array:
    """Return whether generic addresses lie in the shared memory of the thread's own CTA."""
    inner = addresses.astype(np.int64) - SHARED_WINDOW
    ranks = inner // CTA_STEP
    return (inner >= 0) & (inner < 1 << 32) & ((ranks == 0) | (ranks - 1 == g.ctas % g.machine.clusters.size))


@action("isspacep")
def make_space_test(b: Binding) -> Step:
    value, store = b.fetch(1, "u64"), b.reader.store(b.get(0), "pred")
    window = next((w for s, w in WINDOWS.items() if b.op.has(s)), None)
    if b.op.has("shared", "shared__cta"):
        return lambda g: store(g, lies_in_own_cta(g, value(g)))
    if window is not None:
        return lambda g: store(g, (value(g) >> np.uint64(40)) == (window >> 40))
    top = {"global": 0x7F, "const": 0x7E, "param": 0x7D}[b.op.pick("global", "const", "param")]
    return lambda g: store(g, (value(g) >> np.uint64(40)) == top)


@action("mov")
def make_move(b: Binding) -> Step:
    target, source, t = b.get(0), b.get(1), b.op.type
    if isinstance(target, tuple):
        width = get_width(t) // len(target)
        part = RAW[width // 8]
        value = b.reader.fetch(source, f"b{get_width(t)}")
        stores = [b.reader.store(o, part) for o in target]
        dtype = np.dtype(f"u{width // 8}")

        def unpack(g: Group) -> None:
            columns = np.ascontiguousarray(g.spread(value(g))).view(dtype).reshape(g.n, len(target))
            for i, store in enumerate(stores):
                store(g, np.ascontiguousarray(columns[:, i]))

        return unpack
    if isinstance(source, tuple):
        part = RAW[get_width(t) // len(source) // 8]
        values = [b.reader.fetch(o, part) for o in source]
        keep, whole = b.reader.store(target, f"b{get_width(t)}"), np.dtype(f"u{get_width(t) // 8}")
        return lambda g: keep(g, np.stack([g.spread(v(g)) for v in values], -1).view(whole)[:, 0])
    if isinstance(source, Address):
        raise UnknownForm(f"the operand of `{b.op.text}`")
    return make_lane_step(b.op, lambda a: a, [make_source(b.reader, source, t)], (target, t), b.reader)


@action("prefetch", "prefetchu", "applypriority", "discard")
def make_hint(b: Binding) -> Step:
    return lambda g: None  # moves data between caches, changes no value


@action("createpolicy")
def make_policy(b: Binding) -> Step:
    store = b.reader.store(b.get(0), "b64")
    return lambda g: store(g, np.zeros(g.n, np.uint64))
