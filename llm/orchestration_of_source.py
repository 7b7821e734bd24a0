"""Orchestration of an annotated CUDA source, and the source with it written in.

It has workers, barriers with their counts, stages, groups and registers. Counts of threads become counts of workers
here; cuda_source finds the calls.
"""

from __future__ import annotations

from collections import defaultdict
from math import prod

from cuir.text.source import Source

from .cuda_calls import CUIR
from .cuda_source import SIZES
from .orchestration import BarrierUse, Groups, Memory, Orchestration, Workers
from .reading import LowCall, Reading

DOES = {"bulk_load": "bulk load", "cp_async": "cp.async", "bulk_store": "bulk store", "wgmma": "wgmma", "mma": "mma"}
WORK = {
    *DOES,
    "wait",
    "arrive",
    "expect",
    "named_sync",
    "named_arrive",
    "ldmatrix",
    "stmatrix",
    "cp_wait",
    "bulk_wait",
    "wgmma_wait",
    "fence_async",
}
ALIKE = 0.5  # of the calls of two warps: as many in common, and they are workers of one role
EVIDENCE = {"text": "the text alone", "compiler": "what nvcc made of it"}
NEAR = 6  # lines beside one with code that an excerpt has: types and constants stand there
HEADLINE = "what CuIR calls the calls below, and the threads that reach them"


def of_source(reading: Reading) -> Orchestration:
    """Return roles, barriers, arrays and groups of a source; spans are lines of it."""
    calls = reading.calls[_setup(reading) :]
    roles = _roles(reading, calls)
    stages = _stages(reading)
    barriers = [*_mbarriers(reading, calls, roles, stages), *_find_named_barriers(reading, calls, roles)]
    groups = {
        "wgmma": Groups("wgmma", tuple((c.number, reading.span(c.at)) for c in calls if c.kind == "wgmma_wait" and c.number is not None)),
        "cp.async": Groups(
            "cp.async", tuple((c.number, reading.span(c.at)) for c in calls if c.kind == "cp_wait" and c.number is not None)
        ),
        "bulk store": Groups(
            "bulk store", tuple((c.number, reading.span(c.at)) for c in calls if c.kind == "bulk_wait" and c.number is not None)
        ),
    }
    joins = next((reading.span(c.at) for c in calls if c.kind == "sync" and c.in_loop), None)
    return Orchestration(
        tuple(r for r, _ in roles),
        tuple(barriers),
        _memory(reading, calls, stages),
        {k: g for k, g in groups.items() if g.remaining},
        joins,
        reading.by,
        tuple(text for text, _ in reading.more),
        reading.unknown,
        reading.uncertain,
    )


def _stages(reading: Reading) -> dict[str, int | None]:
    """Return the number of barriers of each name.

    It follows from its dims, or for pointers into shared memory from the number of `init` calls.
    """
    result: dict[str, int | None] = {}
    initialised: dict[str, int | None] = {}
    for c in (c for c in reading.calls if c.kind == "init"):
        for name in c.objects[:1]:
            before = initialised.get(name, 0)
            initialised[name] = None if before is None or c.trips is None else before + c.trips
            array = reading.arrays[name]
            result[name] = _product(array.dims) if array.dims else initialised[name]
    return result


def _setup(reading: Reading) -> int:
    """Return how many calls make barriers ready.

    They end with the first join of all threads after the first `init`.
    """
    first_init = next((i for i, c in enumerate(reading.calls) if c.kind == "init"), None)
    if first_init is None:
        return 0
    return next((i + 1 for i, c in enumerate(reading.calls) if i > first_init and c.kind in ("sync", "cluster_sync")), 0)


Placed = tuple[Workers, tuple[int, ...]]  # a role, and the masks of its workers' threads


def _roles(reading: Reading, calls: list[LowCall]) -> list[Placed]:
    """Group warps that reach much the same calls into roles; warps that do nothing are left out."""
    warps: dict[int, frozenset[int]] = {}
    for w in range(-(-reading.threads // 32)):
        mask = (1 << 32) - 1 << 32 * w
        reached = frozenset(i for i, c in enumerate(calls) if c.kind in WORK and c.threads & mask)
        if reached:
            warps[w] = reached
    parties: list[list[int]] = []
    for w, reached in warps.items():
        for party in parties:
            first = warps[party[0]]
            if len(first & reached) >= ALIKE * len(first | reached):
                party.append(w)
                break
        else:
            parties.append([w])
    roles: list[Placed] = []
    for party in parties:
        reached = frozenset().union(*(warps[w] for w in party))
        does = frozenset(DOES[calls[i].kind] for i in reached if calls[i].kind in DOES)
        everyone = sum((1 << 32) - 1 << 32 * w for w in party)
        register_call = next((c for c in calls if c.kind == "registers" and c.threads & everyone == everyone), None)
        whole = (
            register_call is not None and len(party) % 4 == 0 and all(party[i] == party[0] // 4 * 4 + i for i in range(len(party)))
        )  # setmaxnreg is a warpgroup's
        threads = 128 if "wgmma" in does or whole else 32
        size = threads // 32
        masks = tuple(sum((1 << 32) - 1 << 32 * w for w in party[i : i + size]) for i in range(0, len(party), size))
        registers, at = (register_call.number, reading.span(register_call.at)) if register_call else (None, None)
        name = _role_name(does, [calls[i] for i in sorted(reached)], [r.name for r, _ in roles], len(parties))
        roles.append((Workers(name, len(masks), threads, registers, does, reading.span(calls[min(reached)].at), at), masks))
    return roles


def _role_name(does: frozenset[str], reached: list[LowCall], names: list[str], parties: int) -> str:
    """Return a name for a role by its work."""
    multiplies, loads = does & {"wgmma", "mma"}, does & {"bulk load", "cp.async"}
    name = (
        "all"
        if multiplies and parties == 1
        else "compute"
        if multiplies
        else "load"
        if loads
        else "store"
        if "bulk store" in does
        else "other"
    )
    if name in names:
        moved = {o.partition("_")[0] for c in reached if c.kind in ("bulk_load", "cp_async", "bulk_store") for o in c.objects[-1:]}
        name = "_".join([name, *sorted(moved)])
    while name in names:
        name += "_too"
    return name


def _mbarriers(reading: Reading, calls: list[LowCall], roles: list[Placed], stages: dict[str, int | None]) -> list[BarrierUse]:
    """Return the mbarriers that roles use."""
    result = []
    for init in (c for c in reading.calls if c.kind == "init"):
        for name in init.objects[:1]:
            users = {kind: _users(calls, roles, name, kinds) for kind, kinds in (("arrives", ("arrive", "expect")), ("waits", ("wait",)))}
            if not users["arrives"] and not users["waits"]:
                continue  # initialised, but used only by another configuration of the source
            of_worker = _arrivals(calls, roles, name)
            count = init.number // of_worker if init.number is not None and of_worker and init.number % of_worker == 0 else None
            counted = f"{init.written} = {init.number} threads, {of_worker} of each worker" if of_worker > 1 else ""
            carries = any(name in c.objects for c in calls if c.kind in ("bulk_load", "expect"))
            result.append(
                BarrierUse(
                    name,
                    "mbarrier",
                    count,
                    stages.get(name) or 1,
                    carries,
                    users["arrives"],
                    users["waits"],
                    reading.span(init.at),
                    counted,
                )
            )
    return result


def _users(calls: list[LowCall], roles: list[Placed], name: str, kinds: tuple[str, ...]) -> frozenset[str]:
    """Return the roles that reach calls of these kinds on a barrier."""
    reached = [c.threads for c in calls if c.kind in kinds and name in c.objects]
    return frozenset(r.name for r, masks in roles if any(t & m for t in reached for m in masks))


def _arrivals(calls: list[LowCall], roles: list[Placed], name: str) -> int:
    """Return how many threads of a worker arrive at one barrier at a time; 0 if none does.

    In a cluster each CTA's barrier is a separate one.
    """
    threads = [t for c in calls if c.kind in ("arrive", "expect") and name in c.objects for t in ([t for _, t in c.ids] or [c.threads])]
    return max(((t & m).bit_count() for t in threads for _, masks in roles for m in masks), default=0)


def _find_named_barriers(reading: Reading, calls: list[LowCall], roles: list[Placed]) -> list[BarrierUse]:
    """Return named barriers between workers.

    One inside of a worker joins its warps, which CuIR does not show.
    """
    result: list[BarrierUse] = []
    for ids, members in _parties(calls):
        everyone = _threads(members)
        syncs = [c for c in members if c.kind == "named_sync"]
        number = (syncs or members)[0].number
        users = [(r, masks) for r, masks in roles if any(m & everyone for m in masks)]
        if not users or _inside_of_a_worker(members, roles):
            continue
        constants = [o for c in members for o in c.objects if o in reading.constants or reading.by == "compiler"]
        name = constants[0].lower() if constants else f"named_{min(ids)}"
        if any(b.name == name for b in result):  # one number with two counts is two barriers in turns
            name = f"{name}_{number}"
        count = _workers(number, [r for r, _ in users]) or _arriving(members, [m for _, masks in users for m in masks])
        waits = frozenset(r.name for r, masks in users if any(c.threads & m for c in syncs for m in masks))
        counted = f"{number} threads" if number is not None else ""
        result.append(
            BarrierUse(
                name,
                "named_barrier",
                count,
                len(ids),
                False,
                frozenset(r.name for r, _ in users),
                waits,
                reading.span((syncs or members)[0].at),
                counted,
            )
        )
    return result


def _workers(number: int | None, roles: list[Workers]) -> int | None:
    """Convert a number of threads to workers: of all `roles` together, or of roles with equal threads.

    None if the number is of neither.
    """
    if number == sum(r.workers * r.threads for r in roles):
        return sum(r.workers for r in roles)
    threads = {r.threads for r in roles}
    return number // roles[0].threads if number is not None and len(threads) == 1 and number % roles[0].threads == 0 else None


def _arriving(members: list[LowCall], workers: list[int]) -> int | None:
    """Return how often workers arrive at one barrier before it opens, None if unknown.

    The threads of its calls must add up to its count: each group that waits arrives once, and of those that only arrive
    each once, or one in place of another. Examples are all threads that arrive and one warp of them that then waits, or
    a warpgroup and the warp that stores for it, after a first arrival of its own.
    """
    counts = set[int | None]()
    for i in {i for c in members for i, _ in c.ids}:
        waiting, arriving = ({t for c in members if c.kind == k for j, t in c.ids if j == i} for k in ("named_sync", "named_arrive"))
        rest = (members[0].number or 0) - sum(g.bit_count() for g in waiting)
        each = {sum(1 for m in workers if g & m) for g in arriving}
        if rest == sum(g.bit_count() for g in arriving):
            arrivals: int | None = sum(1 for g in arriving for m in workers if g & m)
        else:
            arrivals = each.pop() if {g.bit_count() for g in arriving} == {rest} and len(each) == 1 else None
        counts.add(None if arrivals is None else arrivals + sum(1 for g in waiting for m in workers if g & m))
    return counts.pop() if len(counts) == 1 else None


def _parties(calls: list[LowCall]) -> list[tuple[set[int], list[LowCall]]]:
    """Group calls of named barriers that name a common barrier.

    A group is divided by the counts of its calls if each count has waiting calls.
    """
    parties: list[tuple[set[int], list[LowCall]]] = []
    for c in (c for c in calls if c.kind in ("named_sync", "named_arrive") and c.ids):
        ids, members = {i for i, _ in c.ids}, [c]
        for party in [p for p in parties if p[0] & ids]:
            parties.remove(party)
            ids, members = ids | party[0], party[1] + members
        parties.append((ids, members))
    result = []
    for ids, members in parties:
        by_count = [[c for c in members if c.number == n] for n in dict.fromkeys(c.number for c in members)]
        if all(any(c.kind == "named_sync" for c in some) for some in by_count):
            result += [({i for c in some for i, _ in c.ids}, some) for some in by_count]
        else:
            result.append((ids, members))
    return result


def _threads(calls: list[LowCall]) -> int:
    """Return the threads that reach some of these calls."""
    mask = 0
    for c in calls:
        mask |= c.threads
    return mask


def _inside_of_a_worker(members: list[LowCall], roles: list[Placed]) -> bool:
    """Return whether a barrier joins the threads of one worker at a time.

    Each barrier's threads are one worker's, as many as it counts; or whole workers', each of which it counts alone and
    joins in its turn.
    """
    workers = [m for _, masks in roles for m in masks]

    def is_inside(threads: int, c: LowCall) -> bool:
        """Return whether a call joins single workers."""
        touched = [m for m in workers if threads & m]
        if len(touched) > 1 and (c.kind != "named_sync" or threads != sum(touched)):
            return False
        return bool(touched) and all(threads & ~sum(touched) == 0 and m.bit_count() == c.number for m in touched)

    return all(is_inside(threads, c) for c in members for _, threads in c.ids)


def _memory(reading: Reading, calls: list[LowCall], stages: dict[str, int | None]) -> tuple[Memory, ...]:
    """Return arrays that copies or products touch.

    A ring has as many stages as its barrier, or as its first dim says where it has none.
    """
    result = []
    for array in reading.arrays.values():
        about = [c for c in calls if array.name in c.objects and c.kind in ("bulk_load", "bulk_store", "cp_async", "ldmatrix", "stmatrix")]
        if not about or array.name in stages or not array.dims or array.dims[0] is None:
            continue
        elements, size = _product(array.dims), SIZES.get(array.type)
        signals = [stages[o] for c in about if c.kind == "bulk_load" for o in c.objects[1:] if o in stages]
        if signals:
            turns: int | None = max(s or 1 for s in signals)
        elif any(c.kind == "cp_async" for c in about) and len(array.dims) > 1:
            turns = array.dims[0]
        else:
            turns = 1 if reading.by == "text" or any(c.kind in ("bulk_load", "cp_async") for c in about) else None
        result.append(Memory(array.name, elements * size if elements and size else None, turns, reading.span(array.at)))
    return tuple(result)


def _product(dims: tuple[int | None, ...]) -> int | None:
    """Return the product of dims, None if one is unknown."""
    return None if None in dims else prod(d for d in dims if d is not None)


# ---- the source with its orchestration written in
def describe_threads(mask: int, threads: int) -> str:
    """Describe the threads of a mask in words."""
    if mask == (1 << threads) - 1:
        return "all threads"
    warps = [w for w in range(-(-threads // 32)) if mask >> 32 * w & (1 << 32) - 1]
    each = {(mask >> 32 * w & (1 << 32) - 1).bit_count() for w in warps}
    named = (
        f"warp {warps[0]}"
        if len(warps) == 1
        else f"warps {warps[0]} to {warps[-1]}"
        if warps == list(range(warps[0], warps[-1] + 1))
        else "warps " + ", ".join(map(str, warps))
    )
    if each == {32}:
        if len(warps) % 4 == 0 and warps[0] % 4 == 0 and len(warps) == warps[-1] - warps[0] + 1:
            first, last = warps[0] // 4, warps[-1] // 4
            return f"warpgroup {first}" if first == last else f"warpgroups {first} to {last}"
        return named
    if each == {1}:
        return f"one thread of {named}" if len(warps) == 1 else f"one thread of each of {named}"
    return f"{mask.bit_count()} threads of {named}"


def explain(reading: Reading, whole: bool = True) -> str:
    """Return the source with its orchestration at the top, and CuIR's name above each low-level call.

    Further sources that calls lie in follow. Unless `whole`, these are cut to what lies near a line that the kernel has
    code of, where the compiler says which.
    """
    orchestration = of_source(reading)
    calls = reading.calls[_setup(reading) :]
    roles = _roles(reading, calls)
    inside = {id(c) for _, members in _parties(calls) if _inside_of_a_worker(members, roles) for c in members}
    implied = {
        id(c): "nothing: barriers are ready when the roles start"
        for c in reading.calls[: _setup(reading)]
        if c.kind in ("sync", "cluster_sync")
    }
    implied |= dict.fromkeys(inside, "nothing: a worker acts as a whole")
    by_line: dict[tuple[Source, int], list[str]] = defaultdict(list)
    for c in reading.calls:
        for place in reading.calling(c.at):
            by_line[place].append(describe(c, reading.threads, implied.get(id(c))))
    lines = [
        f"// Orchestration of {reading.kernel}, {reading.threads} threads; {HEADLINE}; read by {EVIDENCE[reading.by]}",
        *(f"//   {line}" for line in orchestration.lines()),
        "",
    ]
    for source in reading.sources:
        if source != reading.source:
            lines += ["", f"// ======== {source.name}"]
        code = None if whole or source == reading.source else reading.with_code(source)
        near = None if code is None else {n + i for n in code for i in range(-NEAR, NEAR + 1)}
        left_out = 0
        for number, line in enumerate(source.lines, 1):
            if near is not None and number not in near:
                left_out += 1
                if number + 1 in near or number == len(source.lines):
                    lines.append(f"// ... {left_out} lines of which this kernel has no code")
                    left_out = 0
                continue
            indent = line[: len(line) - len(line.lstrip())]
            lines += [f"{indent}// CuIR: {text}" for text in dict.fromkeys(by_line.get((source, number), ()))]
            lines.append(line)
    return "\n".join(lines)


def describe(c: LowCall, threads: int, meaning: str | None = None) -> str:
    """Describe a call in a line: its name in CuIR (or `meaning`), its objects, threads and macros."""
    meaning = meaning or CUIR[c.kind].replace("{n}", str(c.number) if c.number is not None else c.written or "n")
    about = f" [{', '.join(c.objects)}]" if c.objects else ""
    value = "" if c.number is None else f", count {c.number}" if c.written == str(c.number) else f", count {c.written} = {c.number}"
    count = value if c.kind in ("init", "named_sync", "named_arrive") else ""
    via = f", through {' and '.join(c.via)}" if c.via else ""
    return f"{meaning}{about}{count}; by {describe_threads(c.threads, threads)}{via}"
