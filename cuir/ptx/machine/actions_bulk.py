"""Bulk copies (cp.async.bulk, cp.reduce.async.bulk), of plain bytes and of boxes of tensors, for an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ..isa.instruction_table import DTYPES, UnknownForm, get_width, split_opcode
from ..isa.memory_forms import find_atomic
from ..isa.tensor_boxes import MAP_BYTES, TYPES, TensorBoxes, decode_boxes, find_elements, swizzle_addresses, widen
from ..module import Address
from .copy_engines import EngineRead, Transfer, get_shared_address
from .findings import describe_thread, make_span
from .groups import Group
from .lane_machine import Machine
from .memories import UNSIGNED, Memory
from .operands import Array, Fetch
from .program import Binding, Step

HINTS = ("L2__cache_hint", "mbarrier__complete_tx__bytes", "bulk_group", "tile", "multicast__cluster")
PLACES = ("async", "bulk", "tensor", "global", "shared__cta", "shared__cluster")
ALIGNMENT = 16  # bytes, of where a box begins in the innermost dim; an H200 ends the kernel at another (illegal instruction)
RANKS = tuple(f"{n}d" for n in range(1, 6))
Combine = Callable[[Array, Array], Array]
Stores = dict[tuple[int, ...] | None, Transfer]  # by what they copy, of the lanes of one instruction


class Parts(NamedTuple):
    """The elements of a copy, in both memories.

    Attributes:
        element: Bytes of an element.
        inside: Which elements lie in the tensor.
    """

    shared: Array
    outer: Array
    inside: Array
    element: int


def make_bulk_instruction(b: Binding) -> Step:
    """Make the step of a bulk copy, or of the commit of its group or the wait for it."""
    op, place = b.op, b.place
    if op.has("commit_group"):
        return lambda g: g.machine.engines.commit(g.slots)
    if op.has("wait_group"):
        op.allow("async", "bulk", "wait_group", "read")
        keep, reads = int(b.get(0)), op.has("read")
        return lambda g: g.machine.engines.wait(g.slots, keep, reads, place)
    if op.has("prefetch"):
        return lambda g: None  # moves data between caches, changes no value
    reduces = op.name == "cp" and op.has("reduce")
    op.allow(*PLACES, *HINTS, *RANKS, *(("reduce", "add", "noftz") if reduces else ()))
    directions = [m for m in op.modifiers if m in ("global", "shared__cta", "shared__cluster")]
    if directions == ["shared__cluster", "shared__cta"] and not reduces:
        return make_peer_copy(b)
    loads = directions[-1] == "global"
    if len(directions) != 2 or directions.count("global") != 1 or op.has("mbarrier__complete_tx__bytes") != loads:
        raise UnknownForm(f"the instruction `{op.text}`")
    if reduces and (loads or not op.has("add")):
        raise UnknownForm(f"the operation of `{op.text}`")
    return make_tensor_copy(b, loads, reduces) if op.has("tensor") else make_plain_copy(b, loads, reduces)


def make_plain_copy(b: Binding, loads: bool, reduces: bool) -> Step:
    """Make the step of a copy of bytes that follow one another."""
    place = b.place
    target, source, size = b.reader.fetch_address(b.get(0)), b.reader.fetch_address(b.get(1)), b.fetch(2, "u32")
    barrier = b.reader.fetch_address(b.get(3)) if loads else None
    element = get_width(b.op.type) // 8 if reduces else 1
    combine = make_sum(b.op.type) if reduces else None
    mask = b.fetch(4, "u16") if b.op.has("multicast__cluster") else None

    def issue(g: Group) -> None:
        m: Machine = g.machine
        sizes, shared, outer = g.spread(size(g)), target if loads else source, source if loads else target
        addresses, others = find_shared(m, g, shared(g), place), g.spread(outer(g)) - m.global_memory.base
        receivers, barriers = find_receivers(g, mask, place), find_barriers(m, g, barrier, place)
        stores: Stores = {}
        for i in range(g.n):
            n, slot = int(sizes[i]), int(g.slots[i])
            key = None if loads or reduces else (slot >> 5, n, int(addresses[i]), int(others[i]))
            if join_store(m, stores, key, slot):
                continue
            if n % 16 or addresses[i] % 16 or others[i] % 16:
                refuse(m, slot, place, f"copies {n} bytes from or to addresses, and all three must be multiples of 16")
            steps = np.arange(0, n, element)
            parts = Parts(addresses[i] + steps, others[i] + steps, np.ones(len(steps), np.bool_), element)
            for copied, bar in send(m, parts, barriers[i], receivers[i]):
                check_bounds(m, slot, copied, place)
                stores[key] = start_copy(m, slot, place, copied, bar, combine)

    return issue


def make_peer_copy(b: Binding) -> Step:
    """Make the step of a copy from a CTA's shared memory into that of another one."""
    place = b.place
    target, source, size = b.reader.fetch_address(b.get(0)), b.reader.fetch_address(b.get(1)), b.fetch(2, "u32")
    barrier = b.reader.fetch_address(b.get(3))

    def issue(g: Group) -> None:
        m: Machine = g.machine
        sizes, targets, sources = g.spread(size(g)), find_shared(m, g, target(g), place), find_shared(m, g, source(g), place)
        barriers = find_barriers(m, g, barrier, place)
        for i in range(g.n):
            n, slot = int(sizes[i]), int(g.slots[i])
            if n % 16 or targets[i] % 16 or sources[i] % 16:
                refuse(m, slot, place, f"copies {n} bytes from or to addresses, and all three must be multiples of 16")
            places = [int(at[i]) + np.arange(n) for at in (targets, sources)]
            for at in places:
                check_bounds(m, slot, Parts(at, at, np.zeros(n, np.bool_), 1), place)
            bar = barriers[i]
            assert bar is not None
            if bar // m.shared.stride != int(targets[i]) // m.shared.stride:
                refuse(m, slot, place, "copies into one CTA, and names an mbarrier in another one")
            start_peer_copy(m, slot, place, (places[0], places[1]), bar)

    return issue


def make_tensor_copy(b: Binding, loads: bool, reduces: bool) -> Step:
    """Make the step of a copy of a box of a tensor."""
    place, op = b.place, b.op
    where, other = (b.get(1), b.get(0)) if loads else (b.get(0), b.get(1))
    if not isinstance(where, Address) or len(where.rest) != 1 or not isinstance(where.rest[0], tuple):
        raise UnknownForm(f"the coordinates of `{op.text}`")
    coordinates = [b.reader.fetch(c, "s32") for c in where.rest[0]]
    rank = int(op.pick(*RANKS, default="0d")[0])
    if rank != len(coordinates):
        raise UnknownForm(f"{len(coordinates)} coordinates of `{op.text}`")
    map_address, shared = b.reader.fetch_address(Address(where.base, where.offset)), b.reader.fetch_address(other)
    barrier = b.reader.fetch_address(b.get(2)) if loads else None
    mask = b.fetch(3, "u16") if op.has("multicast__cluster") else None
    sums = {t: make_sum(t) for t in TYPES if t != "tf32"} if reduces else {}

    def issue(g: Group) -> None:
        m: Machine = g.machine
        maps, starts = g.spread(map_address(g)), [g.spread(c(g)) for c in coordinates]
        places, receivers = find_shared(m, g, shared(g), place), find_receivers(g, mask, place)
        barriers = find_barriers(m, g, barrier, place)
        stores: Stores = {}
        for i in range(g.n):
            slot = int(g.slots[i])
            key = None if loads or reduces else (slot >> 5, int(maps[i]), int(places[i]), *(int(c[i]) for c in starts))
            if join_store(m, stores, key, slot):
                continue
            boxes = read_map(m, slot, int(maps[i]), rank, place)
            start, rounds = tuple(int(c[i]) for c in starts), loads and boxes.type == "tf32"
            if start[0] * boxes.element % ALIGNMENT:
                refuse(
                    m, slot, place, f"copies a box from element {start[0]} of the innermost dim, which must lie at a multiple of 16 bytes"
                )
            if not reduces:
                wide = widen(boxes)
                boxes, start = wide, (start[0] * boxes.element // wide.element, *start[1:])
            offsets, inside = find_elements(boxes, start)
            first = int(places[i])
            address = get_shared_address(m, first)
            if address % (128 if boxes.swizzle else 16):
                refuse(m, slot, place, f"copies a box at {address:#x}, which must be a multiple of 128 (16 without swizzle)")
            own = swizzle_addresses(address + np.arange(len(offsets)) * boxes.element, boxes.swizzle) - address + first
            parts = Parts(own, boxes.address - m.global_memory.base + offsets, inside, boxes.element)
            map_read = use_map(m, slot, int(maps[i]), barriers[i], place)
            for copied, bar in send(m, parts, barriers[i], receivers[i]):
                check_bounds(m, slot, copied, place)
                if rounds:
                    check_tf32(m, copied, place)
                stores[key] = start_copy(m, slot, place, copied, bar, sums.get(boxes.type), map_read)

    return issue


def make_sum(type_name: str) -> Combine:
    """Return the addition of elements, given as unsigned words."""
    add = find_atomic(split_opcode(f"red.add.{type_name}"))
    own = np.dtype(DTYPES[type_name])
    raw = np.dtype(f"u{own.itemsize}")
    return lambda old, new: np.ascontiguousarray(add(old.view(own), new.view(own), None)).view(raw)


def find_shared(m: Machine, g: Group, addresses: Array, place: int) -> Array:
    """Return the byte places of addresses in shared memory."""
    _, inner = m.find_memory("shared" if int(np.max(addresses)) < 1 << 32 else "", g.spread(addresses), 1)
    return m.find_places(m.shared, g, inner, 1, place)


def find_barriers(m: Machine, g: Group, address: Fetch | None, place: int) -> Sequence[int | None]:
    """Return the byte places of the threads' mbarriers; None for copies of a group."""
    return [None] * g.n if address is None else find_shared(m, g, address(g), place).tolist()


def join_store(m: Machine, stores: Stores, key: tuple[int, ...] | None, slot: int) -> bool:
    """Return whether another lane of the warp has issued the same store by this instruction; it is one for both then.

    CUTLASS lets all lanes of a warp store a tile: they write the same bytes.
    """
    if key is None or key not in stores:
        return False
    m.engines.join(stores[key], slot)
    return True


def find_receivers(g: Group, mask: Fetch | None, place: int) -> list[list[int]]:
    """Return, for each thread, the CTAs that its copy goes to; none for the CTA that it addresses."""
    m: Machine = g.machine
    if mask is None:
        return [[]] * g.n
    found = []
    for i, bits in enumerate(g.spread(mask(g)).tolist()):
        if not bits or bits >> m.clusters.size:
            refuse(m, int(g.slots[i]), place, f"copies to the CTAs {bits:#b} of its cluster, which has {m.clusters.size}")
        first = int(g.ctas[i]) // m.clusters.size * m.clusters.size
        found.append([first + rank for rank in range(m.clusters.size) if bits >> rank & 1])
    return found


def send(m: Machine, parts: Parts, barrier: int | None, receivers: list[int]) -> Iterator[tuple[Parts, int | None]]:
    """Yield a copy, with its mbarrier, for each CTA that gets it: at the same place in each."""
    if not receivers or barrier is None:
        yield parts, barrier
        return
    stride = m.shared.stride
    start = int(parts.shared[0]) // stride * stride
    for cta in receivers:
        yield parts._replace(shared=parts.shared - start + cta * stride), barrier % stride + cta * stride


def refuse(m: Machine, slot: int, place: int, message: str) -> None:
    """End the run at a copy that the engine does not take."""
    raise m.findings.stop("M402", f"{describe_thread(m, slot + m.knowledge.first)} {message}", make_span(m, place))


def check_bounds(m: Machine, slot: int, parts: Parts, place: int) -> None:
    """Refuse a copy that leaves shared or global memory."""
    base = int(parts.shared[0]) // m.shared.stride * m.shared.stride
    low, high = int(parts.shared.min()) - base, int(parts.shared.max()) - base + parts.element
    if low < 0 or high > m.shared.size:
        raise m.findings.stop(
            "M409",
            f"{describe_thread(m, slot + m.knowledge.first)} copies bytes {low} to {high} of shared memory, which has {m.shared.size:,} bytes",
            make_span(m, place),
        )
    outer = parts.outer[parts.inside]
    if len(outer) and (int(outer.min()) < 0 or int(outer.max()) + parts.element > m.global_memory.size):
        address = int(outer.min() if outer.min() < 0 else outer.max()) + m.global_memory.base
        who, where = describe_thread(m, slot + m.knowledge.first), m.describe_nearest(address)
        raise m.findings.stop("M402", f"{who} copies {address:#x}, outside of global memory{where}", make_span(m, place))


def check_tf32(m: Machine, parts: Parts, place: int) -> None:
    """Refuse a copy that rounds f32 to tf32: PTX does not say how."""
    words = m.global_memory.view_rows(4, parts.element // 4)[parts.outer[parts.inside] // parts.element]
    if (words & 0x1FFF).any():
        raise m.findings.stop("O123", "the machine does not know how a copy rounds f32 to tf32", make_span(m, place), "use numbers of tf32")


def use_map(m: Machine, slot: int, address: int, barrier: int | None, place: int) -> EngineRead | None:
    """Check that a copy sees its tensor map as it is, if the launch may change it: in global memory."""
    at = address - m.global_memory.base
    if not m.launch.detect or not 0 <= at < m.global_memory.size:
        return None
    return m.tensor_maps.use(slot, at, -slot - 1 if barrier is None else barrier, place)


def read_map(m: Machine, slot: int, address: int, rank: int, place: int) -> TensorBoxes:
    """Return the tensor map at an address. Raises CuirError M402 if there is none."""
    memory, inner = m.find_memory("", np.array([address]), MAP_BYTES)
    at = int(inner[0]) - memory.base
    data = memory.bytes[at : at + MAP_BYTES].tobytes() if 0 <= at <= len(memory.bytes) - MAP_BYTES else b""
    boxes = decode_boxes(data) if len(data) == MAP_BYTES else None
    if boxes is None or len(boxes.sizes) != rank:
        found = "no tensor map" if boxes is None else f"a tensor map of {len(boxes.sizes)} dims"
        refuse(m, slot, place, f"copies {rank} dims by {found}: cuir.cuda.tensor_map(tensor, box) makes one")
    assert boxes is not None
    return boxes


def drop_repeats(numbers: Array) -> Array:
    """Return the numbers in order, each once; most come in order."""
    steps = numbers[1:] - numbers[:-1]
    if (steps >= 0).all():
        return numbers[np.concatenate([[True], steps > 0])]
    return np.unique(numbers)


def find_entries(memory: Memory, places: Array, element: int) -> Array:
    """Return the entries of a shadow that elements have. Those of a copy lie apart in shared memory."""
    shadow = memory.shadow
    assert shadow is not None
    if not len(places):
        return np.zeros(0, np.int64)
    if memory.name == "shared":
        low, high = int(places.min()), int(places.max()) + element
        if high - low == len(places) * element and not (low | high) & ((1 << shadow.shift) - 1):
            return np.arange(low >> shadow.shift, high >> shadow.shift)
    if element >= 4 and (places[1:] - places[:-1] >= element).all() and not (places & 3).any():
        return shadow.find_entries(places, element).reshape(-1)
    if shadow.shift and (element < 4 or (places & 3).any()):
        words = drop_repeats(places >> 2)
        if len(words) * 4 != len(places) * element or (places & (element - 1)).any():
            shadow.split()
        else:
            return words
    return drop_repeats(shadow.find_entries(places, element).reshape(-1))


def start_copy(
    m: Machine,
    slot: int,
    place: int,
    parts: Parts,
    barrier: int | None,
    combine: Combine | None,
    map_read: EngineRead | None = None,
) -> Transfer:
    """Check a copy, hand it to the engine, and return it."""
    inside, element = parts.inside, parts.element
    unit, engines = np.dtype(UNSIGNED[element]), m.engines
    outer, shared = m.global_memory, m.shared
    loads, whole = barrier is not None, bool(inside.all())
    taken, tile = (parts.outer, parts.shared) if whole else (parts.outer[inside], parts.shared[inside])
    outer_entries = find_entries(outer, taken, element)
    shared_entries = find_entries(shared, parts.shared if loads else tile, element)
    source, target = (outer, shared) if loads else (shared, outer)
    mode = "add" if combine is not None else "write"
    tick = m.next_tick(place)
    engines.check(source, np.array([slot]), outer_entries if loads else shared_entries, "read", place)
    engines.check(target, np.array([slot]), shared_entries if loads else outer_entries, mode, place)
    if barrier is not None:
        m.barriers.find(barrier, slot, place)  # raises if there is none
    read = None if loads or not m.launch.detect else engines.enter_read(np.array([slot]), [shared_entries], place)

    def load() -> None:
        words = outer.typed[element][taken // element]
        if not whole:
            inner, words = words, np.zeros(len(inside), unit)
            words[inside] = inner
        shared.typed[element][parts.shared // element] = words

    def store() -> None:
        words, at = shared.typed[element][tile // element], taken // element
        cells = outer.typed[element]
        cells[at] = words if combine is None else combine(cells[at], words)

    nbytes = len(inside) * element
    entries = shared_entries if loads else outer_entries
    transfer = Transfer(slot, place, tick, load if loads else store, target, entries, nbytes, barrier, read, map_read)
    engines.issue(transfer)
    return transfer


def start_peer_copy(m: Machine, slot: int, place: int, places: tuple[Array, Array], barrier: int) -> None:
    """Check a copy between places (to, from) of shared memory, and hand it to the engine."""
    target, source = places
    entries = [find_entries(m.shared, at, 1) for at in places]
    tick, own = m.next_tick(place), np.array([slot])
    m.engines.check(m.shared, own, entries[1], "read", place)
    m.engines.check(m.shared, own, entries[0], "write", place)
    m.barriers.find(barrier, slot, place)
    read = m.engines.enter_read(own, [entries[1]], place) if m.launch.detect else None

    def move() -> None:
        m.shared.bytes[target] = m.shared.bytes[source]

    m.engines.issue(Transfer(slot, place, tick, move, m.shared, entries[0], len(target), barrier, read))
