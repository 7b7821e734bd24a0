"""Actions of warps and CTAs: exchanges of lanes, barriers, matrices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..isa.instruction_table import UnknownForm
from ..isa.matrices import collect_matrices, multiply_fragments, spread_matrices
from ..isa.memory_forms import MemoryAccess
from ..isa.warp_wide import match, pack_lanes, reduce_warp, shuffle, shuffle_by_numbers, vote
from ..module import Operand
from .actions_cluster import make_cluster_barrier
from .barrier_phases import Arrival
from .groups import Group
from .lane_machine import Machine
from .operands import Array, list_parts
from .product_runs import WarpProduct
from .program import Binding, Step, action


def find_members(g: Group) -> Array:
    """Return which lanes [warps, 32] are in the group."""
    return g.as_warps(np.ones(g.n, np.bool_))


@action("shfl")
def make_shuffle(b: Binding) -> Step:
    target = b.get(0)
    first, second = target if isinstance(target, tuple) else (target, "_")
    store, keep = b.reader.store(first, "b32"), b.reader.store(second, "pred")
    value, amount, clamp = b.fetch(1, "b32"), b.fetch(2, "b32"), b.fetch(3, "b32")
    b.note_mask(4)
    op = b.op

    def run(g: Group) -> None:
        by, within = amount(g), clamp(g)
        if by.ndim or within.ndim:
            result, inside, _ = shuffle(op, g.as_warps(value(g)), g.as_warps(by), g.as_warps(within))
        else:
            result, inside = shuffle_by_numbers(op, g.as_warps(value(g)), int(by), int(within))
        store(g, g.of_warps(result))
        keep(g, g.of_warps(inside))

    return run


@action("vote")
def make_vote(b: Binding) -> Step:
    ballot = b.op.has("ballot")
    store = b.reader.store(b.get(0), "b32" if ballot else "pred")
    p, op = b.fetch(1, "pred"), b.op
    b.note_mask(2)
    return lambda g: store(g, g.of_warps(vote(op, g.as_warps(p(g)), find_members(g))))


@action("match")
def make_match(b: Binding) -> Step:
    target = b.get(0)
    first, second = target if isinstance(target, tuple) else (target, "_")
    store, keep = b.reader.store(first, "b32"), b.reader.store(second, "pred")
    value, op = b.fetch(1, b.op.type), b.op
    b.note_mask(2)

    def run(g: Group) -> None:
        lanes, same = match(op, g.as_warps(value(g)), find_members(g))
        store(g, g.of_warps(lanes))
        keep(g, g.of_warps(same))

    return run


@action("redux")
def make_reduction(b: Binding) -> Step:
    store, value, op = b.reader.store(b.get(0), b.op.type), b.fetch(1, b.op.type), b.op
    b.note_mask(2)
    return lambda g: store(g, g.of_warps(reduce_warp(op, g.as_warps(value(g)), find_members(g))))


@action("elect")
def make_election(b: Binding) -> Step:
    target = b.get(0)
    first, second = target if isinstance(target, tuple) else ("_", target)
    store, keep = b.reader.store(first, "b32"), b.reader.store(second, "pred")
    b.note_mask(1)

    def run(g: Group) -> None:
        leader = find_members(g).argmax(1)[:, None]
        lanes = np.broadcast_to(np.arange(32), (len(leader), 32))
        store(g, g.of_warps(np.broadcast_to(leader, lanes.shape).astype(np.uint32)))
        keep(g, g.of_warps(lanes == leader))

    return run


@action("activemask")
def make_active_mask(b: Binding) -> Step:
    store = b.reader.store(b.get(0), "b32")

    def run(g: Group) -> None:
        members = find_members(g)
        store(g, g.of_warps(np.broadcast_to(pack_lanes(members)[:, None], members.shape)))

    return run


@action("setmaxnreg")
def make_register_request(b: Binding) -> Step:
    b.op.allow("inc", "dec", "sync", "aligned")
    count = b.get(0)
    if not isinstance(count, int) or count % 8 or not 24 <= count <= 256:
        raise UnknownForm(f"a request for {count} registers by `{b.op.text}`")
    return lambda g: None  # moves registers of the hardware between warps; those of PTX are as many as are named


@action("nanosleep", "pmevent")
def make_nothing(b: Binding) -> Step:
    return lambda g: None  # changes when, not what


@action("griddepcontrol")
def make_grid_control(b: Binding) -> Step:
    b.op.allow("wait", "launch_dependents")
    if b.op.has("launch_dependents"):
        return lambda g: None  # the next launch may begin, and must wait for all of this one

    def wait(g: Group) -> None:
        m: Machine = g.machine
        m.knowledge.learn_earlier(g.slots, m.tick)

    return wait


# ---- barriers
@action("bar", "barrier")
def make_barrier(b: Binding) -> Step:
    op, place = b.op, b.place
    if op.has("cluster"):
        return make_cluster_barrier(b)
    if op.has("warp"):
        b.note_mask(0)
        return lambda g: g.machine.knowledge.meet_in_warp(g.slots, g.machine.next_tick(place))
    op.allow("sync", "arrive", "red", "aligned", "cta", "popc", "and", "or")
    if b.instruction.guard is not None and not op.has("arrive"):
        raise UnknownForm(f"a predicate at `{op.text}`")
    operands = list(b.instruction.operands)
    reduction = op.pick("popc", "and", "or") if op.has("red") else ""
    target = operands.pop(0) if reduction else None
    vote_of = b.reader.fetch(operands.pop(), "pred") if reduction else None
    number = b.reader.fetch(operands[0], "u32")
    expected = b.reader.fetch(operands[1], "u32") if len(operands) > 1 else None
    register = b.reader.find_register(target) if isinstance(target, str) else None
    if register is not None:
        b.reader.writes.add(register)
    waits, following = not op.has("arrive"), b.block.successors[0]
    b.block.waits = waits
    block = b.block.index

    def arrive(g: Group) -> None:
        m: Machine = g.machine
        counts = g.spread(expected(g)) if expected is not None else None
        for count in [None] if counts is None else np.unique(counts).tolist():
            chosen = np.arange(g.n) if counts is None else np.flatnonzero(counts == count)
            part = g if len(chosen) == g.n else g.take(chosen)
            votes = g.spread(vote_of(g))[chosen] if vote_of is not None else None
            m.barriers.arrive(part, Arrival(g.spread(number(g))[chosen], count, waits, reduction, register, votes, following, place, block))

    return arrive


@action("mbarrier")
def make_mbarrier(b: Binding) -> Step:
    op, place = b.op, b.place
    form = op.pick("init", "inval", "arrive", "arrive_drop", "expect_tx", "complete_tx", "test_wait", "try_wait", "pending_count")
    if op.has("expect_tx") and op.has("arrive"):
        form = "arrive"
    if form in ("", "pending_count") or op.has("noComplete"):
        raise UnknownForm(f"the instruction `{op.text}`")
    operands = list(b.instruction.operands)
    takes_state = form in ("arrive", "arrive_drop", "test_wait", "try_wait")
    target = operands.pop(0) if takes_state and not hasattr(operands[0], "base") else "_"
    address = b.reader.fetch_address(operands[0])
    rest = [b.reader.fetch(o, "b64" if form in ("test_wait", "try_wait") and not op.has("parity") else "u32") for o in operands[1:]]
    space = "shared" if op.has("shared", "shared__cta", "shared__cluster") else ""
    whole = MemoryAccess("write", space, "b64", 1, False, False, False, "cta")
    part = MemoryAccess("atomic", space, "b64", 1, True, False, False, "cta")
    keep = b.reader.store(target, "pred" if form in ("test_wait", "try_wait") else "b64")

    def run(g: Group) -> None:
        m: Machine = g.machine
        _, addresses = m.find_memory(space, g.spread(address(g)), 8)
        places = m.find_places(m.shared, g, addresses, 8, place)
        values = [g.spread(v(g)).astype(np.int64) for v in rest]
        m.check_access(m.shared, g, places, whole if form in ("init", "inval") else part, 8, place)
        if form == "init":
            m.barriers.init(g.slots, places, values[0], place)
        elif form == "inval":
            for at in places.tolist():
                m.barriers.mbarriers.pop(at, None)
        elif form in ("expect_tx", "complete_tx"):
            m.barriers.expect(g.slots, places, values[0] if form == "expect_tx" else -values[0], place)
        elif form in ("test_wait", "try_wait"):
            keep(g, m.barriers.test(g.slots, places, values[0], op.has("parity"), place))
        else:
            one, none = np.ones(g.n, np.int64), np.zeros(g.n, np.int64)
            expects = op.has("expect_tx")
            counts = values[0] if values and not expects else one
            phases = m.barriers.arrive_at(g.slots, places, counts, values[0] if expects else none, place, op.has("cta"))
            if form == "arrive_drop":
                for at, slot in zip(places.tolist(), g.slots.tolist()):
                    m.barriers.find(at, slot, place).count -= 1
            keep(g, phases)

    return run


# ---- matrices
@action("mma")
def make_product(b: Binding) -> Step:
    op = b.op
    if op.has("sp", "block_scale") or len(b.instruction.operands) < 4 or len(op.types) != 4:
        raise UnknownForm(f"the instruction `{op.text}`")
    kind = {"f64": "b64"}
    types = [kind.get(t, "b32") for t in op.types]
    for o in list_parts(b.get(0)):
        b.reader.store(o, types[0])  # noted as written; raises UnknownForm for another destination
    parts = [list_parts(b.get(i)) for i in (1, 2, 3)]
    first, second, third = (tuple(b.reader.fetch(o, t) for o in part) for part, t in zip(parts, types[1:]))
    shape = [np.zeros((1, 32), np.uint64 if t == "b64" else np.uint32) for t in types[1:]]
    multiply_fragments(op, *([z] * len(part) for z, part in zip(shape, parts)))  # raises UnknownForm for an unknown shape

    def number(part: Sequence[Operand]) -> tuple[int, ...]:
        found = (b.reader.find_register(o) if isinstance(o, str) else None for o in part)
        return tuple(-1 if n is None else n for n in found)

    registers = number(parts[0]), number(parts[1]), number(parts[2])
    return WarpProduct(op, (first, second, third), registers, number(list_parts(b.get(0))))


def read_matrix_form(b: Binding) -> tuple[int, bool, MemoryAccess]:
    """Return the number of matrices, whether they are transposed, and the access to a row."""
    b.op.allow("sync", "aligned", "m8n8", "x1", "x2", "x4", "trans", "shared", "shared__cta")
    count = int(b.op.pick("x1", "x2", "x4", default="x0")[1:])
    if not count or b.op.type != "b16" or not b.op.has("m8n8"):
        raise UnknownForm(f"the instruction `{b.op.text}`")
    space = "shared" if b.op.has("shared", "shared__cta") else ""
    return (
        count,
        b.op.has("trans"),
        MemoryAccess("read" if b.op.name == "ldmatrix" else "write", space, "b16", 8, False, False, False, "cta"),
    )


def find_rows(g: Group, addresses: Array, count: int, access: MemoryAccess, place: int) -> tuple[Array, Array | None]:
    """Return the byte places of rows [warps, 8 * count], checked, and the lanes that lost one."""
    m: Machine = g.machine
    part, addresses = g, g.spread(addresses)
    if count < 4:
        chosen = np.flatnonzero((g.slots & 31) < 8 * count)
        part, addresses = g.take(chosen), addresses[chosen]
    memory, inner = m.find_memory(access.space, addresses, 16)
    if memory is not m.shared:
        raise m.report_outside(m.shared, part, 0, int(addresses[0]), 16, place)
    places = m.find_places(memory, part, inner, 16, place)
    lost = m.check_access(memory, part, places, access, 16, place)
    return places.reshape(-1, 8 * count), lost


@action("ldmatrix")
def make_matrix_load(b: Binding) -> Step:
    count, transposed, access = read_matrix_form(b)
    stores = [b.reader.store(o, "b32") for o in list_parts(b.get(0))]
    address, place = b.reader.fetch_address(b.get(1)), b.place

    def load(g: Group) -> None:
        places, _ = find_rows(g, address(g), count, access, place)
        rows = g.machine.shared.view_rows(2, 8)[places // 16].reshape(-1, count, 8, 8)
        for store, value in zip(stores, spread_matrices(rows, transposed)):
            store(g, g.of_warps(value))

    return load


@action("stmatrix")
def make_matrix_store(b: Binding) -> Step:
    count, transposed, access = read_matrix_form(b)
    values = [b.reader.fetch(o, "b32") for o in list_parts(b.get(1))]
    address, place = b.reader.fetch_address(b.get(0)), b.place

    def store(g: Group) -> None:
        matrices = collect_matrices([g.as_warps(v(g)) for v in values], transposed)
        places, _ = find_rows(g, address(g), count, access, place)
        g.machine.shared.view_rows(2, 8)[places.reshape(-1) // 16] = matrices.reshape(-1, 8)

    return store


@action("movmatrix")
def make_matrix_move(b: Binding) -> Step:
    b.op.allow("sync", "aligned", "m8n8", "trans")
    value, keep = b.fetch(1, "b32"), b.reader.store(b.get(0), "b32")
    return lambda g: keep(g, g.of_warps(spread_matrices(collect_matrices([g.as_warps(value(g))], False), True)[0]))
