"""The orchestration that an annotated CUDA source shows: workers, barriers with their counts, stages, groups, registers; and the source with it written in.

Owns how counts of threads become counts of workers. Finds no calls: cuda_source does.
"""

from __future__ import annotations

from collections import defaultdict
from math import prod

from .cuda_calls import CUIR
from .cuda_source import SIZES, Annotated, LowCall
from .orchestration import BarrierUse, Groups, Memory, Orchestration, Workers

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
HEADLINE = "what CuIR calls the calls below, and the threads that reach them"


def of_source(annotated: Annotated) -> Orchestration:
    """Roles, barriers, arrays and groups of a source; spans are lines of it."""
    calls = annotated.calls[_setup(annotated) :]
    roles = _roles(annotated, calls)
    stages = _stages(annotated)
    barriers = [*_mbarriers(annotated, calls, roles, stages), *_named_barriers(annotated, calls, roles)]
    groups = {
        "wgmma": Groups("wgmma", tuple((c.number, annotated.span(c.at)) for c in calls if c.kind == "wgmma_wait" and c.number is not None)),
        "cp.async": Groups(
            "cp.async", tuple((c.number, annotated.span(c.at)) for c in calls if c.kind == "cp_wait" and c.number is not None)
        ),
    }
    joins = next((annotated.span(c.at) for c in calls if c.kind == "sync" and c.in_loop), None)
    return Orchestration(tuple(r for r, _ in roles), tuple(barriers), _memory(annotated, calls, stages), {k: g for k, g in groups.items() if g.left}, joins)  # fmt: skip


def _stages(annotated: Annotated) -> dict[str, int | None]:
    """How many barriers each name stands for: by its dims, or for memory that was carved by hand as many as are made."""
    result: dict[str, int | None] = {}
    made: dict[str, int | None] = {}
    for c in (c for c in annotated.calls if c.kind == "init"):
        for name in c.objects[:1]:
            before = made.get(name, 0)
            made[name] = None if before is None or c.trips is None else before + c.trips
            array = annotated.arrays[name]
            result[name] = _product(array.dims) if array.dims else made[name]
    return result


def _setup(annotated: Annotated) -> int:
    """How many calls make barriers ready: up to the first join of all threads after the first `init`."""
    made = next((i for i, c in enumerate(annotated.calls) if c.kind == "init"), None)
    if made is None:
        return 0
    return next((i + 1 for i, c in enumerate(annotated.calls) if i > made and c.kind in ("sync", "cluster_sync")), 0)


Placed = tuple[Workers, tuple[int, ...]]  # a role, and the masks of its workers' threads


def _roles(annotated: Annotated, calls: list[LowCall]) -> list[Placed]:
    """Warps that reach much the same calls are one role; warps that do nothing are none."""
    warps: dict[int, frozenset[int]] = {}
    for w in range(-(-annotated.threads // 32)):
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
        threads = 128 if "wgmma" in does else 32
        size = threads // 32
        masks = tuple(sum((1 << 32) - 1 << 32 * w for w in party[i : i + size]) for i in range(0, len(party), size))
        everyone = sum(masks)
        told = next((c for c in calls if c.kind == "registers" and c.threads & everyone == everyone), None)
        registers, at = (told.number, annotated.span(told.at)) if told else (None, None)
        name = _role_name(does, [calls[i] for i in sorted(reached)], [r.name for r, _ in roles], len(parties))
        roles.append((Workers(name, len(masks), threads, registers, does, annotated.span(calls[min(reached)].at), at), masks))
    return roles


def _role_name(does: frozenset[str], reached: list[LowCall], taken: list[str], parties: int) -> str:
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
    if name in taken:
        moved = {o.partition("_")[0] for c in reached if c.kind in ("bulk_load", "cp_async", "bulk_store") for o in c.objects[-1:]}
        name = "_".join([name, *sorted(moved)])
    while name in taken:
        name += "_too"
    return name


def _mbarriers(annotated: Annotated, calls: list[LowCall], roles: list[Placed], stages: dict[str, int | None]) -> list[BarrierUse]:
    result = []
    for init in (c for c in annotated.calls if c.kind == "init"):
        for name in init.objects[:1]:
            users = {kind: _users(calls, roles, name, kinds) for kind, kinds in (("arrives", ("arrive", "expect")), ("waits", ("wait",)))}
            if not users["arrives"] and not users["waits"]:
                continue  # made, and used by another configuration of the source only
            of_worker = _arrivals(calls, roles, name)
            count = init.number // of_worker if init.number is not None and of_worker and init.number % of_worker == 0 else None
            counted = f"{init.written} = {init.number} threads, {of_worker} of each worker" if of_worker > 1 else ""
            carries = any(name in c.objects for c in calls if c.kind in ("bulk_load", "expect"))
            result.append(BarrierUse(name, "mbarrier", count, stages.get(name) or 1, carries, users["arrives"], users["waits"], annotated.span(init.at), counted))  # fmt: skip
    return result


def _users(calls: list[LowCall], roles: list[Placed], name: str, kinds: tuple[str, ...]) -> frozenset[str]:
    reached = [c.threads for c in calls if c.kind in kinds and name in c.objects]
    return frozenset(r.name for r, masks in roles if any(t & m for t in reached for m in masks))


def _arrivals(calls: list[LowCall], roles: list[Placed], name: str) -> int:
    """How many threads of a worker arrive at one barrier at a time; 0 if nobody does. In a cluster each CTA's is one."""
    threads = [t for c in calls if c.kind in ("arrive", "expect") and name in c.objects for t in ([t for _, t in c.ids] or [c.threads])]
    return max(((t & m).bit_count() for t in threads for _, masks in roles for m in masks), default=0)


def _named_barriers(annotated: Annotated, calls: list[LowCall], roles: list[Placed]) -> list[BarrierUse]:
    """Named barriers between workers; one inside of a worker joins its warps, which CuIR does not show."""
    result = []
    for ids, members in _parties(calls):
        everyone = _threads(members)
        syncs = [c for c in members if c.kind == "named_sync"]
        number = (syncs or members)[0].number
        users = [(r, masks) for r, masks in roles if any(m & everyone for m in masks)]
        if not users or _inside_of_a_worker(members, roles):
            continue
        constants = [o for c in members for o in c.objects if o in annotated.cuda.constants]
        name = constants[0].lower() if constants else f"named_{min(ids)}"
        threads = users[0][0].threads
        count = number // threads if number is not None and number % threads == 0 else None
        waits = frozenset(r.name for r, masks in users if any(c.threads & m for c in syncs for m in masks))
        counted = f"{number} threads" if number is not None else ""
        result.append(BarrierUse(name, "named_barrier", count, len(ids), False, frozenset(r.name for r, _ in users), waits,
                                 annotated.span((syncs or members)[0].at), counted))  # fmt: skip
    return result


def _parties(calls: list[LowCall]) -> list[tuple[set[int], list[LowCall]]]:
    """Calls of named barriers, together where they name a common barrier."""
    parties: list[tuple[set[int], list[LowCall]]] = []
    for c in (c for c in calls if c.kind in ("named_sync", "named_arrive") and c.ids):
        ids, members = {i for i, _ in c.ids}, [c]
        for party in [p for p in parties if p[0] & ids]:
            parties.remove(party)
            ids, members = ids | party[0], party[1] + members
        parties.append((ids, members))
    return parties


def _threads(calls: list[LowCall]) -> int:
    mask = 0
    for c in calls:
        mask |= c.threads
    return mask


def _inside_of_a_worker(members: list[LowCall], roles: list[Placed]) -> bool:
    """Whether each barrier's threads are one worker's, as many as it counts."""
    workers = [m for _, masks in roles for m in masks]
    return all(any(threads & ~m == 0 and m.bit_count() == c.number for m in workers) for c in members for _, threads in c.ids)


def _memory(annotated: Annotated, calls: list[LowCall], stages: dict[str, int | None]) -> tuple[Memory, ...]:
    """Arrays that copies or products touch. A ring has as many stages as its barrier, or as its first dim says where it has none."""
    result = []
    for array in annotated.arrays.values():
        about = [c for c in calls if array.name in c.objects and c.kind in ("bulk_load", "bulk_store", "cp_async", "ldmatrix", "stmatrix")]
        if not about or array.name in stages or not array.dims or array.dims[0] is None:
            continue
        elements, size = _product(array.dims), SIZES.get(array.type)
        signals = [stages[o] for c in about if c.kind == "bulk_load" for o in c.objects[1:] if o in stages]
        if signals:
            turns = signals[0] or 1
        elif any(c.kind == "cp_async" for c in about) and len(array.dims) > 1:
            turns = array.dims[0]
        else:
            turns = 1
        result.append(Memory(array.name, elements * size if elements and size else None, turns, annotated.span(array.at)))
    return tuple(result)


def _product(dims: tuple[int | None, ...]) -> int | None:
    return None if None in dims else prod(d for d in dims if d is not None)


# ---- the source with its orchestration written in
def who(mask: int, threads: int) -> str:
    """The threads of a mask in words."""
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


def explained(annotated: Annotated) -> str:
    """The source with its orchestration at the top, and above each line with low-level calls what CuIR calls them."""
    shown = of_source(annotated)
    calls = annotated.calls[_setup(annotated) :]
    roles = _roles(annotated, calls)
    inside = {id(c) for _, members in _parties(calls) if _inside_of_a_worker(members, roles) for c in members}
    implied = {
        id(c): "nothing: barriers are ready when the roles start"
        for c in annotated.calls[: _setup(annotated)]
        if c.kind in ("sync", "cluster_sync")
    }
    implied |= dict.fromkeys(inside, "nothing: a worker acts as a whole")
    by_line: dict[int, list[str]] = defaultdict(list)
    for c in annotated.calls:
        by_line[annotated.cuda.line(c.at)].append(describe(c, annotated.threads, implied.get(id(c))))
    head = [f"// Orchestration of {annotated.kernel}, {annotated.threads} threads; {HEADLINE}", *(f"//   {line}" for line in shown.lines())]
    lines = []
    for number, line in enumerate(annotated.cuda.text.split("\n"), 1):
        indent = line[: len(line) - len(line.lstrip())]
        lines += [f"{indent}// CuIR: {text}" for text in dict.fromkeys(by_line.get(number, ()))]
        lines.append(line)
    return "\n".join([*head, "", *lines])


def describe(c: LowCall, threads: int, meaning: str | None = None) -> str:
    """A call in a line: what CuIR calls it (or `meaning`), about what, by whom, through which macros."""
    meaning = meaning or CUIR[c.kind].replace("{n}", str(c.number) if c.number is not None else c.written or "n")
    about = f" [{', '.join(c.objects)}]" if c.objects else ""
    value = "" if c.number is None else f", count {c.number}" if c.written == str(c.number) else f", count {c.written} = {c.number}"
    count = value if c.kind in ("init", "named_sync", "named_arrive") else ""
    via = f", through {' and '.join(c.via)}" if c.via else ""
    return f"{meaning}{about}{count}; by {who(c.threads, threads)}{via}"
