"""Instructions on tensor maps in memory: tensormap.replace, tensormap.cp_fenceproxy, and the fences of their proxy."""

from __future__ import annotations

import numpy as np

from ..isa.instruction_table import UnknownForm
from ..isa.memory_forms import MemoryAccess
from ..isa.tensor_boxes import FIELDS, MAP_BYTES, change_map
from .findings import describe_thread, make_span
from .groups import Group
from .lane_machine import Machine
from .memories import Memory
from .operands import Array
from .program import Binding, Step, action
from .tensor_map_proxy import SPACE

WORDS = MAP_BYTES // 8
SPACES = ("global", "shared__cta")


@action("tensormap")
def make_tensormap_instruction(b: Binding) -> Step:
    op = b.op
    if op.has("cp_fenceproxy"):
        return make_fenced_copy(b)
    op.allow("replace", "tile", "b1024", *SPACES, *FIELDS)
    field = op.pick(*FIELDS)
    if not op.has("replace") or not op.has("b1024") or not field:
        raise UnknownForm(f"the instruction `{op.text}`")
    place, numbered = b.place, FIELDS[field].length > 1
    index = b.get(1) if numbered else 0
    if not isinstance(index, int) or not 0 <= index < FIELDS[field].length:
        raise UnknownForm(f"the dim of `{op.text}`")
    value = b.fetch(2 if numbered else 1, op.type)
    address, space = b.reader.fetch_address(b.get(0)), op.pick(*SPACES).removesuffix("__cta")

    def replace(g: Group) -> None:
        m: Machine = g.machine
        memory, places = find_maps(m, g, space, address(g), "write", place)
        for i, (at, new) in enumerate(zip(places.tolist(), g.spread(value(g)).tolist())):
            try:
                data = change_map(memory.bytes[at : at + MAP_BYTES].tobytes(), field, index, new)
            except UnknownForm as reason:
                raise m.findings.stop("O123", f"the machine does not know {reason}", make_span(m, place)) from None
            if data is None:
                who = describe_thread(m, int(g.slots[i]) + m.knowledge.first)
                raise m.findings.stop("M402", f"{who} changes bytes that hold no tensor map", make_span(m, place))
            memory.bytes[at : at + MAP_BYTES] = np.frombuffer(data, np.uint8)

    return replace


def find_maps(m: Machine, g: Group, space: str, addresses: Array, mode: str, place: int) -> tuple[Memory, Array]:
    """Check accesses to maps, and return the memory and the byte places."""
    memory, inner = m.find_memory(space, g.spread(addresses), MAP_BYTES)
    places = m.find_places(memory, g, inner, MAP_BYTES, place)
    m.check_access(memory, g, places, MemoryAccess(mode, space, "b64", WORDS, False, False, False, "sys"), MAP_BYTES, place)
    return memory, places


def make_fenced_copy(b: Binding) -> Step:
    """Make the step of a warp's copy of a map from shared to global memory, with the release fence behind it."""
    b.op.allow("cp_fenceproxy", *SPACES, "tensormap__generic", "release", "cta", "cluster", "gpu", "sys", "sync", "aligned")
    target, source, place = b.reader.fetch_address(b.get(0)), b.reader.fetch_address(b.get(1)), b.place

    def copy(g: Group) -> None:
        m: Machine = g.machine
        chosen = np.flatnonzero(np.diff(g.slots >> 5, prepend=-1))  # one lane for each warp
        part = g.take(chosen)
        memory, places = find_maps(m, part, "shared", g.spread(source(g))[chosen], "read", place)
        outer, targets = find_maps(m, part, "global", g.spread(target(g))[chosen], "write", place)
        for at, to in zip(places.tolist(), targets.tolist()):
            outer.bytes[to : to + MAP_BYTES] = memory.bytes[at : at + MAP_BYTES]
        m.engines.fence(g.slots, place, (SPACE,))

    return copy


def make_map_fence(b: Binding) -> Step:
    """Make the step of `fence.proxy.tensormap::generic`."""
    op, place = b.op, b.place
    op.allow("proxy", "tensormap__generic", "acquire", "release", "cta", "cluster", "gpu", "sys")
    if not op.has("acquire"):
        return lambda g: g.machine.engines.fence(g.slots, place, (SPACE,))
    if b.get(1) != MAP_BYTES:
        raise UnknownForm(f"the size of `{op.text}`")
    address = b.reader.fetch_address(b.get(0))

    def acquire(g: Group) -> None:
        m: Machine = g.machine
        memory, inner = m.find_memory("", g.spread(address(g)), MAP_BYTES)
        if memory is m.global_memory:
            m.tensor_maps.acquire(g.slots, inner - memory.base, place)

    return acquire
