"""Conversions of a tile from one layout to another: registers only, shuffles, or shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .layouts import Layout
from .linear_maps import Span, join, split
from .shared_memory import CHUNK

Way = Literal["none", "registers", "shuffles", "shared memory"]


@dataclass(frozen=True)
class Conversion:
    """The way of a conversion, and the instructions that it takes of a thread.

    shuffles: of 32-bit registers between lanes. selects: between two registers, by the lane. permutes: of halves to
    registers. stores, loads: of shared memory. barriers: all threads of the worker meet.
    """

    way: Way
    shuffles: int = 0
    selects: int = 0
    permutes: int = 0
    stores: int = 0
    loads: int = 0
    barriers: int = 0

    @property
    def instructions(self) -> int:
        """Number of instructions of a thread, without addresses."""
        return self.shuffles + self.selects + self.permutes + self.stores + self.loads + self.barriers


def plan_conversion(source: Layout, target: Layout, itemsize: int = 4) -> Conversion:
    """Plan a conversion of elements of `itemsize` bytes; packed ones of 2 share a register.

    Both atoms are linear, so that target, then the inverse of source, is one as well: it says from where each register
    takes its element. What it leaves of lane and warp is the way. Layouts with unlike repeats go through memory.
    """
    names = ("register", "lane", "warp")
    a, b = source.atom, target.atom
    sizes = {n: bits for n, bits in a.outputs if n != "part"}
    if (source.repeats, source.turns) != (target.repeats, target.turns) or sizes != dict(b.outputs):
        return _plan_memory(source, target, itemsize)
    if source == target:
        return Conversion("none")
    per_warp, per_lane = Span(a.columns_of("register", "lane")), Span(a.columns_of("register"))
    origins, way = list[dict[str, int]](), "registers"
    widths = dict(a.inputs)
    for name in names:
        for i, image in enumerate(b.columns_of(name)):
            kept = {name: 1 << i} if name != "register" and i < widths.get(name, 0) else {}
            rest = per_lane.solve(image ^ a.apply(join(a.inputs, kept)))
            if rest is None:
                way, kept = "shuffles", {n: bit for n, bit in kept.items() if n == "warp"}
                rest = per_warp.solve(image ^ a.apply(join(a.inputs, kept)))
            if rest is None:
                return _plan_memory(source, target, itemsize)
            moved = split((("register", widths["register"]), ("lane", widths.get("lane", 0))), rest)
            origins.append({"register": moved["register"], "lane": moved["lane"] | kept.get("lane", 0), "warp": kept.get("warp", 0)})
    registers = dict(b.inputs)["register"]
    by_register, by_lane = origins[:registers], origins[registers:]
    choices = 1 << Span(o["register"] for o in by_lane).rank  # registers of which a lane's number chooses one
    paired = itemsize == 2 and registers > 0 and by_register[0] == {"register": 1, "lane": 0, "warp": 0}
    paired = paired and all(o["register"] % 2 == 0 for o in origins[1:])
    count = target.count // 2 if paired else target.count
    permutes = 0 if paired or itemsize != 2 else target.count // 2
    selects = (choices - 1) * count
    if way == "registers" and not selects and not permutes and all(o["register"] == 1 << i for i, o in enumerate(by_register)):
        return Conversion("none")  # the same registers, of which the source holds more copies
    return Conversion(way, choices * count if way == "shuffles" else 0, selects, permutes)  # type: ignore[arg-type]


def _plan_memory(source: Layout, target: Layout, itemsize: int) -> Conversion:
    """Plan a conversion through shared memory: all is stored, all threads meet, all is loaded, as wide as columns lie side by side."""
    stores, loads = (x.count // min(_count_neighbours(x), max(CHUNK // itemsize, 1)) for x in (source, target))
    return Conversion("shared memory", stores=stores, loads=loads, barriers=1)


def _count_neighbours(layout: Layout) -> int:
    """Return how many registers in a row hold neighbouring columns."""
    result = 1
    for i, image in enumerate(layout.atom.columns_of("register")):
        if image != join(layout.atom.outputs, {"column": 1 << i} if 1 << i < layout.extent("column") else {}):
            break
        result *= 2
    return result
