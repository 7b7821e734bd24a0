"""Products of warpgroups in flight: which registers they hold, and what a thread may not do to those before the wait."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .copy_engines import EngineRead
from .findings import describe_thread, make_span
from .operands import Array
from .program import Block


@dataclass(eq=False)
class Product:
    """A product in flight.

    Attributes:
        results, operands: Registers that it writes, and that it reads.
        compute: Function that computes it and keeps its results; None once it has.
        group: Number of its group among those of its warpgroup.
        started: Tick at which all its threads had come to it.
    """

    slots: Array
    place: int
    results: tuple[int, ...]
    operands: frozenset[int]
    compute: Callable[[], None] | None
    read: EngineRead | None
    group: int
    started: int
    held: frozenset[int] = field(default_factory=frozenset)


def _is_overlapping(slots: Array, group: Array) -> bool:
    """Return whether some threads, in order, are of a warpgroup."""
    first = int(np.searchsorted(slots, group[0]))
    return first < len(slots) and bool(slots[first] <= group[-1])


class Products:
    """The products of a machine.

    Attributes:
        unfenced: Whether a thread has written a register since its last wgmma.fence: [registers of products, threads].
    """

    def __init__(self, machine: Any):  # the Machine, whose module imports this one
        self.machine = machine
        rows = sorted(machine.program.product_registers)
        self.rows = {r: i for i, r in enumerate(rows)}
        self.unfenced = np.ones((len(rows), machine.count if rows else 0), np.bool_)
        self.flying: list[Product] = []
        self.commits: dict[int, int] = {}

    def find_group(self, slots: Array) -> int:
        """Return the number of a warpgroup among those of the machine."""
        m = self.machine
        slot = int(slots[0])
        return slot // m.width * (m.width // 128 + 1) + slot % m.width // 128

    def note_block(self, block: Block, slots: Array) -> None:
        """Check the registers that a block reads and writes against products in flight, and note what it writes."""
        for p in self.flying:
            met = block.touched & p.held
            if met and _is_overlapping(slots, p.slots):
                self._report(block, p, met, slots)
        for target, source in block.product_writes:
            if source is None:
                self.unfenced[self.rows[target]][slots] = True
            elif source in self.rows:
                self.unfenced[self.rows[target]][slots] = self.unfenced[self.rows[source]][slots]

    def _report(self, block: Block, p: Product, met: frozenset[int], slots: Array) -> None:
        """Report the instructions of a block that touch registers of a product in flight."""
        m = self.machine
        for place in range(block.first, block.last):
            reads, writes = m.program.uses[place]
            read, written = reads & frozenset(p.results), writes & met
            if not (read or written):
                continue
            if read:
                code, what = "M405", "reads a register that a product in flight writes"
            elif written & frozenset(p.results):
                code, what = "M406", "writes a register that a product in flight writes"
            else:
                code, what = "M407", "writes a register that a product in flight reads"
            who = describe_thread(m, int(slots[0]) + m.knowledge.first)
            note = ("the product is issued here", make_span(m, p.place))
            m.findings.add(code, f"{who} {what}", make_span(m, place), "wgmma.wait_group comes first", (note,))

    def fence(self, slots: Array) -> None:
        """Order what threads wrote to registers before products."""
        self.unfenced[:, slots] = False

    def check_fence(self, slots: Array, results: tuple[int, ...], operands: tuple[int, ...], place: int) -> None:
        """Report registers of a product that were written since the last wgmma.fence."""
        m = self.machine
        rows = [self.rows[r] for r in (*results, *operands)]
        if self.unfenced[rows][:, slots].any():
            who = describe_thread(m, int(slots[0]) + m.knowledge.first)
            m.findings.add(
                "R403",
                f"{who} starts a product whose registers it has written, or used for the first time, without wgmma.fence",
                make_span(m, place),
                "wgmma.fence stands between the last write to a register and the product",
            )
            self.unfenced[rows] = False

    def issue(self, p: Product) -> None:
        """Start a product; those before it into the same registers of the same shape need no wait."""
        m = self.machine
        p.held = frozenset(p.results) | p.operands
        mine = int(p.slots[0])
        for old in self.flying:
            if mine not in old.slots:
                continue
            both = frozenset(old.results) & p.held
            if both and not (old.results == p.results and not both & p.operands):
                who = describe_thread(m, mine + m.knowledge.first)
                note = ("the product is issued here", make_span(m, old.place))
                m.findings.add(
                    "M405",
                    f"{who} starts a product on registers that another one in flight writes",
                    make_span(m, p.place),
                    "wgmma.wait_group comes first, unless both accumulate into the same registers",
                    (note,),
                )
        self.flying.append(p)
        if m.engines.acts_early():
            group = self.find_group(p.slots)
            self._compute([f for f in self.flying if self.find_group(f.slots) == group])

    @staticmethod
    def _compute(products: list[Product]) -> None:
        """Compute products of a warpgroup that are not: one behind the other, as they accumulate."""
        for p in products:
            if p.compute is not None:
                p.compute()
                p.compute = None

    def commit(self, slots: Array) -> None:
        """Close the group of each warpgroup."""
        for first in self._list_groups(slots):
            self.commits[first] = self.commits.get(first, 0) + 1

    def _list_groups(self, slots: Array) -> list[int]:
        """Return the warpgroups of threads."""
        m = self.machine
        return np.unique(slots // m.width * (m.width // 128 + 1) + slots % m.width // 128).tolist()

    def wait(self, slots: Array, keep: int, place: int) -> None:
        """Wait until all groups but the last few of each warpgroup are over."""
        m = self.machine
        groups = set(self._list_groups(slots))
        tick = m.next_tick(place)
        over = []
        for p in self.flying:
            group = self.find_group(p.slots)
            if group in groups and p.group < self.commits.get(group, 0) - keep:
                over.append(p)
        self._compute(over)
        for p in over:
            m.knowledge.note_product(self.find_group(p.slots), p.started, tick)
            if p.read is not None:
                p.read.over = tick
        self.flying = [p for p in self.flying if p not in over]

    def finish(self) -> None:
        """Report products that nobody waited for."""
        m = self.machine
        for p in self.flying:
            who = describe_thread(m, int(p.slots[0]) + m.knowledge.first)
            m.findings.add(
                "M404", f"nobody waited for the product of {who}", make_span(m, p.place), "wgmma.wait_group 0 comes before the end"
            )
