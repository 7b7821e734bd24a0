"""Actions between the CTAs of a cluster: addresses of one another's shared memory, the cluster's barrier, stores that land on an mbarrier."""

from __future__ import annotations

import numpy as np

from ..isa.instruction_table import UnknownForm, get_width
from ..isa.memory_forms import MemoryAccess
from ..module import Address
from .copy_engines import Transfer
from .groups import Group
from .lane_machine import Machine
from .operands import list_parts
from .program import CTA_STEP, Binding, Step, action


@action("mapa")
def make_mapping(b: Binding) -> Step:
    b.op.allow("shared__cluster")
    t = b.op.type
    operand = b.get(1)
    symbol = isinstance(operand, str) and b.reader.find_register(operand) is None
    address = b.reader.fetch_address(Address(operand, 0)) if symbol else b.reader.fetch(operand, t)
    rank, keep = b.fetch(2, "u32"), b.reader.store(b.get(0), t)
    dtype = np.dtype(f"u{get_width(t) // 8}")

    def run(g: Group) -> None:
        whole = address(g).astype(np.int64)
        inner = whole - whole // CTA_STEP % 256 * CTA_STEP
        keep(g, np.asarray(inner + (rank(g).astype(np.int64) + 1) % 256 * CTA_STEP).astype(dtype))

    return run


@action("getctarank")
def make_rank(b: Binding) -> Step:
    b.op.allow("shared__cluster")
    address, keep = b.fetch(1, b.op.type), b.reader.store(b.get(0), "u32")

    def run(g: Group) -> None:
        rank = g.spread(address(g)).astype(np.int64) // CTA_STEP % 256 - 1
        keep(g, np.where(rank < 0, g.ctas % g.machine.clusters.size, rank).astype(np.uint32))

    return run


def make_cluster_barrier(b: Binding) -> Step:
    """Make the step of barrier.cluster."""
    op, place = b.op, b.place
    op.allow("cluster", "arrive", "wait", "aligned", "release", "acquire", "relaxed")
    if op.has("arrive") == op.has("wait"):
        raise UnknownForm(f"the instruction `{op.text}`")
    if op.has("arrive"):
        releases = not op.has("relaxed")
        return lambda g: g.machine.clusters.arrive(g.slots, releases, place)
    if b.instruction.guard is not None:
        raise UnknownForm(f"a predicate at `{op.text}`")
    following, block = b.block.successors[0], b.block.index
    b.block.waits = True
    return lambda g: g.machine.clusters.wait(g.slots, following, block, place)


def make_async_store(b: Binding) -> Step:
    """Make the step of st.async: a store whose bytes land on an mbarrier of the CTA that gets them."""
    op, place = b.op, b.place
    op.allow("async", "weak", "shared__cluster", "mbarrier__complete_tx__bytes", "v2", "v4")
    count = int(op.pick("v2", "v4", default="v1")[1:])
    values = [b.reader.fetch(o, op.type) for o in list_parts(b.get(1))]
    if len(values) != count:
        raise UnknownForm(f"the vector of `{op.text}`")
    target, barrier = b.reader.fetch_address(b.get(0)), b.reader.fetch_address(b.get(2))
    element = get_width(op.type) // 8
    nbytes, raw = element * count, np.dtype(f"u{element}")
    access = MemoryAccess("write", "shared", op.type, count, False, False, False, "cluster")

    def issue(g: Group) -> None:
        m: Machine = g.machine
        data = np.stack([g.spread(np.asarray(v(g))).view(raw) for v in values], -1)
        at = m.find_places(m.shared, g, barrier(g), 8, place)
        places = m.find_places(m.shared, g, target(g), nbytes, place)
        m.check_access(m.shared, g, places, access, nbytes, place)
        shadow = m.shared.shadow
        assert shadow is not None
        entries = shadow.find_entries(places, nbytes)
        for i in range(g.n):
            to, words = int(places[i]) // element, data[i]

            def move(to: int = to, words: np.ndarray = words) -> None:
                m.shared.typed[element][to : to + count] = words

            m.barriers.find(int(at[i]), int(g.slots[i]), place)
            m.engines.issue(Transfer(int(g.slots[i]), place, m.tick, move, m.shared, entries[i], nbytes, int(at[i]), None))

    return issue
