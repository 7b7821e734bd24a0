"""Low-level calls in a kernel's PTX, with their barriers, shared arrays, threads and numbers.

Addresses become barriers and arrays here; the threads are threads.py's, names come from the sources.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from cuir.ptx.module import Address, Chain, Instruction

from ..cuda_calls import INSTRUCTIONS
from .ptx_numbers import CERTAIN, align, extent
from .single_definition import writes
from .threads import MOST, Mask, Threads

ABOUT_BARRIERS = {"init", "expect", "expect_bytes", "arrive", "wait"}
BARRIER = 8  # bytes


def kind_of(op: str) -> str | None:
    """Return the kind of low-level call that an instruction is, None for others."""
    return next((i.kind for i in INSTRUCTIONS if i.name.match(op)), None)


@dataclass
class Event:
    """Instruction that is a low-level call.

    Attributes:
        barriers: Possible addresses of its barrier.
        memory: Shared addresses that a copy writes or reads.
        number: Its count, bytes or wait.
        ids: Ids of a named barrier, or of the CTA that is arrived at, each with its threads.
        map: Address of a tensor map.
        by_barrier: Of a bulk load, the addresses that it writes for each barrier.
        turns: Of cp.async, the number of addresses that each variable yields, and their distance.
        unknown: What does not follow from the PTX.
    """

    index: int
    kind: str
    instruction: Instruction
    threads: Mask
    in_loop: bool
    barriers: tuple[int, ...] = ()
    memory: tuple[int, ...] = ()
    number: int | None = None
    ids: tuple[tuple[int, int], ...] = ()
    map: int | None = None
    by_barrier: dict[int, tuple[int, ...]] = field(default_factory=dict)
    turns: tuple[tuple[int, int], ...] = ()
    unknown: str = ""

    @property
    def chain(self) -> Chain:
        """Places of the instruction in the sources."""
        return self.instruction.chain


@dataclass(frozen=True)
class Ring:
    """A ring of mbarriers, as instructions address it: stages in order of their addresses.

    Attributes:
        addresses: Address of each stage.
        count: Arrivals of a phase, None if unknown.
    """

    addresses: tuple[int, ...]
    count: int | None
    chain: Chain


@dataclass(frozen=True)
class Region:
    """Shared array that copies fill.

    Attributes:
        starts: Address of each stage.
        nbytes: Bytes of a stage, None if unknown.
        ring: The ring that its copies complete on.
    """

    starts: tuple[int, ...]
    nbytes: int | None
    ring: Ring | None
    chain: Chain

    @property
    def stages(self) -> int:
        """Number of stages."""
        return len(self.starts)

    def overlaps(self, region: Region) -> bool:
        """Return whether two arrays share bytes."""
        mine, second = ([(s, s + (r.nbytes or 1)) for s in r.starts] for r in (self, region))
        return any(a < d and c < b for a, b in mine for c, d in second)

    def meets(self, addresses: Sequence[int]) -> bool:
        """Return whether an address lies in the array."""
        return any(s <= a < s + (self.nbytes or 1) for s in self.starts for a in addresses)


def bits(mask: Mask) -> int:
    """Return a mask of threads as one number."""
    return int.from_bytes(np.packbits(mask, bitorder="little").tobytes(), "little")


def events_of(threads: Threads) -> list[Event]:
    """Return the low-level calls that some thread reaches, in the order of the PTX."""
    sites = [(i, kind) for i, x in enumerate(threads.instructions) if (kind := kind_of(x.op)) is not None]
    operands = [o for i, kind in sites if kind not in ("wgmma", "mma") for o in _operands(threads.instructions[i])]
    threads.solve(operands)
    events = []
    for i, kind in sites:
        mask = threads.at(i)
        if mask.any():
            events.append(_event(threads, i, kind, mask))
    return events


def _operands(x: Instruction) -> list[object]:
    """Return the operands that an instruction reads."""
    return list(x.operands[1 if writes(x) or x.operands[:1] == ("_",) else 0 :])


def _event(threads: Threads, i: int, kind: str, mask: Mask) -> Event:
    """Return the event of an instruction that a mask of threads reaches."""
    x = threads.instructions[i]
    operands = _operands(x)
    brackets = [o for o in operands if isinstance(o, Address)]
    plain = [o for o in operands if not isinstance(o, Address)]
    event = Event(i, kind, x, mask, bool(threads.flow.inside(threads.flow.of[i])))

    def addresses(operand: object) -> tuple[int, ...]:
        """Return the possible values of an address, () if unknown."""
        values, is_partial = threads.of_threads(i, operand)
        if not values or (is_partial and len(values) > 12):
            event.unknown = "an address"
            return ()
        return tuple(int(v) for v, _ in values)

    def only(operand: object) -> int | None:
        """Return the single value of an operand, None if there is no single one."""
        values, is_partial = threads.of_threads(i, operand)
        return int(values[0][0]) if len(values) == 1 and not is_partial else None

    def find_values(operand: object) -> tuple[tuple[int, int], ...]:
        """Return the values of an operand, each with its threads."""
        return tuple((int(v), bits(m)) for v, m in threads.of_threads(i, operand)[0])

    if kind in ABOUT_BARRIERS and brackets:
        event.barriers = addresses(brackets[0])
        if kind in ("init", "expect", "expect_bytes") and plain:
            event.number = only(plain[-1])
        base = threads.instructions[threads.writer[brackets[0].base]] if brackets[0].base in threads.writer else None
        if kind == "arrive" and base is not None and base.op.startswith("mapa"):
            event.ids = find_values(base.operands[2])
    elif kind == "bulk_load" and len(brackets) > 2:
        event.memory, event.barriers, event.map = addresses(brackets[0]), addresses(brackets[2]), only(brackets[1])
        event.by_barrier = _together(threads, i, brackets[2], brackets[0])
        event.number = only(plain[0]) if ".tensor" not in x.op and plain else None
    elif kind == "bulk_store" and len(brackets) > 1:
        event.memory, event.map = addresses(brackets[1]), only(brackets[0])
        event.number = only(plain[0]) if ".tensor" not in x.op and plain else None
    elif kind in ("cp_async", "ldmatrix", "stmatrix") and brackets:
        values, _rest = threads.of_threads(i, brackets[0])
        event.memory = tuple(int(v) for v, _ in values)
        event.number = only(plain[0]) if kind == "cp_async" and plain else None
        event.unknown = "an address" if not values else ""
        event.turns = _turns(threads, i, brackets[0]) if kind != "ldmatrix" else ()
    elif kind in ("named_sync", "named_arrive") and plain:
        event.ids, event.number = find_values(plain[0]), only(plain[1]) if len(plain) > 1 else None
        whole = (event.number in (None, threads.count) and kind == "named_sync" and len(plain) < 2) or (
            event.number == threads.count and {n for n, _ in event.ids} == {0}
        )
        if whole and {n for n, _ in event.ids} <= {0}:
            event.kind, event.ids, event.number = "sync", (), None
        elif not event.ids:
            event.unknown = "the number of a named barrier"
    elif plain and kind in ("cp_wait", "wgmma_wait", "bulk_wait", "registers"):
        event.number = only(plain[0])
    elif kind == "cp_wait":
        event.number = 0  # cp.async.wait_all
    return event


def _together(threads: Threads, i: int, first: object, second: object) -> dict[int, tuple[int, ...]]:
    """Return the values of a second operand for each value of a first, if they share variables."""
    a, b = threads.possible(i, threads.value(first)), threads.possible(i, threads.value(second))
    if extent((a, b)) > MOST:
        return {}
    _, (x, y), (sx, sy) = align((a, b))
    x, y, sx, sy = np.broadcast_arrays(x, y, sx, sy)
    both_known = (sx == CERTAIN) & (sy == CERTAIN)
    values: dict[int, set[int]] = defaultdict(set)
    for p, q in np.unique(np.stack([x[both_known], y[both_known]]), axis=1).T:
        values[int(p)].add(int(q))
    return {p: tuple(sorted(q)) for p, q in values.items()}


# ---- barriers
def rings_of(events: Sequence[Event]) -> list[Ring]:
    """Return the rings: initialised barriers, grouped where an instruction may name several.

    Neighbours that one place in the sources initialises for the same threads are grouped too.
    """
    inits = {a: e for e in events if e.kind == "init" for a in e.barriers}
    parent = {a: a for a in inits}

    def root(a: int) -> int:
        """Return the representative of a group."""
        while parent[a] != a:
            a = parent[a]
        return a

    users: dict[int, set[tuple[str, Chain]]] = defaultdict(set)
    for e in events:
        if e.kind in ABOUT_BARRIERS | {"bulk_load"}:
            initialised = [a for a in e.barriers if a in inits]
            if e.kind != "init":
                for a in initialised:
                    users[a].add((e.kind, e.chain))
            for a in initialised[1:] if e.kind != "init" or len(initialised) > 1 else ():
                parent[root(a)] = root(initialised[0])
    users_by_kind: dict[int, frozenset[tuple[str, int]]] = {
        a: frozenset(
            (k, _or([bits(e.threads) for e in events if e.kind == k and a in e.barriers]))
            for k in ("wait", "arrive", "expect", "bulk_load")
        )
        for a in inits
    }
    singles = [a for a in sorted(inits) if not any(root(b) == root(a) for b in inits if b != a)]
    for a, b in itertools.pairwise(singles):
        if (
            b - a == BARRIER
            and inits[a].chain == inits[b].chain
            and inits[a].number == inits[b].number
            and users[a]
            and users_by_kind[a] == users_by_kind[b]
        ):
            parent[root(b)] = root(a)
    rings: dict[int, list[int]] = defaultdict(list)
    for a in sorted(inits):
        rings[root(a)].append(a)
    result = []
    for addresses in rings.values():
        counts = {inits[a].number for a in addresses}
        result.append(Ring(tuple(addresses), counts.pop() if len(counts) == 1 else None, inits[addresses[0]].chain))
    return sorted(result, key=lambda r: r.addresses[0])


# ---- arrays
def _or(masks: Sequence[int]) -> int:
    """Return the union of masks."""
    result = 0
    for m in masks:
        result |= m
    return result


def regions_of(events: Sequence[Event], rings: Sequence[Ring]) -> list[Region]:
    """Return the shared arrays that bulk copies and cp.async fill.

    Those that stmatrix fills, and that bulk copies of a known size take from, are added where they overlap no other.
    """
    regions = [*_find_regions_of_bulk_copies(events, rings), *_find_regions_of_threads(events, "cp_async")]
    for kind in ("stmatrix", "bulk_store"):
        regions += [r for r in _find_regions_of_threads(events, kind) if not any(r.overlaps(c) for c in regions)]
    return regions


def lies_over(events: Sequence[Event]) -> dict[int, tuple[int, ...]]:
    """Return for each bulk store the bytes that stmatrix filled around those that it reads, every 16th.

    They may overlap other arrays, perhaps from another start.
    """
    written = _find_regions_of_threads(events, "stmatrix")
    return {
        e.index: tuple(a for r in written if r.meets(e.memory) for s in r.starts for a in range(s, s + (r.nbytes or 1), 16)) or e.memory
        for e in events
        if e.kind == "bulk_store"
    }


def _find_regions_of_bulk_copies(events: Sequence[Event], rings: Sequence[Ring]) -> list[Region]:
    """Return an array for each tensor map and ring of barriers.

    It starts where the first box of a stage lies, and its stages are as far apart as it is large. One stage has the
    bytes that its copies state, or that its barrier expects less those of other arrays on it.
    """
    ring_of = {a: r for r in rings for a in r.addresses}
    starts: dict[tuple[int | None, Ring], dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    chains: dict[tuple[int | None, Ring], Chain] = {}
    stated: dict[tuple[int | None, Ring], set[int | None]] = defaultdict(set)
    for e in events:
        if e.kind == "bulk_load":
            for barrier, places in e.by_barrier.items():
                if (ring := ring_of.get(barrier)) is not None:
                    starts[e.map, ring][barrier] |= set(places)
                    stated[e.map, ring].add(e.number)
                    chains.setdefault((e.map, ring), e.chain)
    for key in list(starts):  # maps whose boxes take turns in one array
        same = next(
            (
                k
                for k in starts
                if k[1] == key[1] and k != key and {min(p) for p in starts[k].values()} == {min(p) for p in starts[key].values()}
            ),
            None,
        )
        if same is not None:
            del starts[key]
    for key in sorted(starts, key=lambda k: len(starts[k])):  # one array, of which some boxes complete on another barrier
        same_map = [k for k in starts if k[0] == key[0] is not None and k != key]
        if any(set().union(*starts[key].values()) <= set().union(*starts[k].values()) for k in same_map):
            del starts[key]
    expected: dict[Ring, set[int | None]] = defaultdict(set)
    for e in events:
        if e.kind in ("expect", "expect_bytes"):
            for a in e.barriers:
                if a in ring_of:
                    expected[ring_of[a]].add(e.number)
    sized: dict[tuple[int | None, Ring], tuple[tuple[int, ...], int | None]] = {}
    for key, by_stage in starts.items():
        firsts = tuple(sorted({min(places) for places in by_stage.values()}))
        gaps = {b - a for a, b in itertools.pairwise(firsts)}
        alone = stated[key].pop() if len(stated[key]) == 1 and all(len(places) == 1 for places in by_stage.values()) else None
        sized[key] = firsts, alone or (gaps.pop() if len(gaps) == 1 else None)
    for ring, numbers in expected.items():
        mine = [k for k in sized if k[1] == ring]
        total = next(iter(numbers)) if len(numbers) == 1 else None
        if total is None:
            continue
        boxes = {k: _panels(starts[k]) for k in mine if sized[k][1] is None}
        if all(boxes.values()) and sum(b or 0 for b in boxes.values()) + sum(sized[k][1] or 0 for k in mine) == total:
            sized |= {k: (sized[k][0], b) for k, b in boxes.items()}
        sizes = [s for k in mine if (s := sized[k][1]) is not None]
        missing = [k for k in mine if sized[k][1] is None]
        if len(missing) == 1 and total > sum(sizes):
            sized[missing[0]] = sized[missing[0]][0], total - sum(sizes)
        elif not missing and sum(sizes) != total:
            for k in mine:
                sized[k] = sized[k][0], total if len(mine) == 1 else None
    return [Region(firsts, nbytes, key[1], chains[key]) for key, (firsts, nbytes) in sorted(sized.items(), key=lambda item: item[1][0])]


def _panels(by_stage: dict[int, set[int]]) -> int | None:
    """Return the bytes of one stage of an array that is copied box by box at even distances.

    None for a single box.
    """
    sizes = set()
    for places in by_stage.values():
        gaps = {b - a for a, b in zip(sorted(places), sorted(places)[1:])}
        sizes.add(gaps.pop() * len(places) if len(gaps) == 1 else None)
    return sizes.pop() if len(sizes) == 1 else None


def _find_regions_of_threads(events: Sequence[Event], kind: str) -> list[Region]:
    """Return the arrays that cp.async, stmatrix, or bulk stores of a known size fill or read.

    Bytes of one place in the sources make an array, or of several that touch the same; its stages are the values that
    one variable yields for its address.
    """
    covered: dict[Chain, set[int]] = defaultdict(set)
    turns: dict[Chain, set[tuple[int, int]]] = defaultdict(set)
    for e in events:
        if e.kind == kind and (kind != "bulk_store" or e.number is not None):
            covered[e.chain] |= {a + o for a in e.memory for o in range(0, e.number or 16, 4)}
            turns[e.chain].update(e.turns)
    arrays: list[tuple[set[int], list[Chain]]] = []
    for chain, cells in covered.items():
        together = [a for a in arrays if a[0] & cells]
        arrays = [a for a in arrays if not a[0] & cells]
        arrays.append((cells.union(*(a[0] for a in together)), [chain, *(c for a in together for c in a[1])]))
    result: list[Region] = []
    for cells, chains in sorted(arrays, key=lambda a: min(a[0], default=0)):
        if not cells:
            continue
        first, size = min(cells), 4 * len(cells)
        place = min(chains, key=lambda c: c[0].line if c else 0)
        rings = [
            (gap, n)
            for c in chains
            for n, gap in turns[c]
            if n * gap == size or (size // n <= gap and all((a - first) % gap < size // n for a in cells))
        ]
        if rings:
            gap, stages = max(rings)
            result.append(Region(tuple(first + gap * i for i in range(stages)), size // stages, None, place))
        elif max(cells) + 4 - first == size:
            result.append(Region((first,), size, None, place))
        else:
            result.append(Region((first,), None, None, place))
    return result


def _turns(threads: Threads, i: int, operand: object) -> tuple[tuple[int, int], ...]:
    """Return the number of values and their distance for each variable of an address.

    A variable whose values are not evenly spaced is left out.

    Args:
        i: index of the instruction, whose conditions exclude values.
        operand: the address.
    """
    number = threads.possible(i, threads.value(operand))
    turns = []
    data, state = np.broadcast_arrays(number.data, number.state)
    for axis in range(len(number.axes)):
        along, states = np.moveaxis(data, axis, 0).reshape(data.shape[axis], -1), np.moveaxis(state, axis, 0).reshape(data.shape[axis], -1)
        whole = np.flatnonzero((states == CERTAIN).sum(0) == (states == CERTAIN).sum(0).max(initial=0))
        if not len(whole):
            continue
        values = np.unique(along[states[:, whole[0]] == CERTAIN, whole[0]])
        gaps = {int(g) for g in np.diff(values)}
        if len(gaps) == 1:
            turns.append((len(values), gaps.pop()))
    return tuple(turns)
