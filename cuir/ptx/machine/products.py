"""Products of warpgroups in flight: which registers they hold, and what a thread may not do to those before the wait."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..isa.warpgroup_matrices import CHUNK, Form, add_product, arrange, pack_results, unpack_results
from .copy_engines import EngineRead, Landings
from .findings import describe_thread, make_span
from .groups import find_slice, list_distinct
from .memories import IN_FLIGHT, NOTHING, Memory, Shadow
from .operands import Array
from .program import Block


class Operand(NamedTuple):
    """Form of A or B: the type of its elements, its sizes, and whether its rows are contiguous."""

    type: str
    rows: int
    inner: int
    transposed: bool


@dataclass(eq=False)
class Matrix:
    """Matrix in shared memory.

    Attributes:
        chunks: Its chunks of 16 bytes, by their numbers.
        entries: Entries of the shadow.
        numbers: What it held when it was last read, and the tick of the newest write then.
        landings: The bulk copies that wrote it, and the tick of the newest write then.
        span: The ticks of the oldest and the newest write of its bytes, and the last tick of the machine when they were found.
    """

    form: Operand
    chunks: Array
    entries: Array
    numbers: tuple[Array, int] | None = None
    landings: tuple[Landings | None, int] = (None, NOTHING)
    span: tuple[int, int, int] = (NOTHING, NOTHING, -1)

    def split(self) -> list[Array]:
        """Return the entries of each quarter of 64 rows, which are those of a warp if the matrix is A."""
        quarters = np.split(self.entries.reshape(*self.chunks.shape, -1), 4, axis=1 if self.form.transposed else 0)
        return [q.reshape(-1) for q in quarters]

    def find_newest(self, shadow: Shadow, tick: int) -> int:
        """Return the tick of the newest write of its bytes: while it stays, they do; tick: the last one of the machine."""
        if self.span[2] != tick:
            ticks = shadow.written[self.entries]
            self.span = int(ticks.min()), int(ticks.max()), tick
        return self.span[1]

    def read(self, memory: Memory, tick: int | None) -> Array:
        """Return its numbers; tick: the last one of the machine, None if writes have none."""
        newest = self.find_newest(memory.shadow, tick) if tick is not None and memory.shadow is not None else IN_FLIGHT
        if self.numbers is not None and self.numbers[1] == newest < IN_FLIGHT:
            return self.numbers[0]
        found = arrange(memory.typed[CHUNK][self.chunks], self.form.type, self.form.transposed)
        self.numbers = found, newest
        return found


@dataclass(eq=False)
class Product:
    """A product in flight.

    Attributes:
        results, operands: Registers that it writes, and that it reads.
        multiply: Function that multiplies A and B, in f64; None once it has.
        adds: Whether the product is added to what the registers hold.
        group: Number of its group among those of its warpgroup.
        started: Tick at which all its threads had come to it.
        warpgroup: Number of its warpgroup among those of the machine.
        held: All its registers.
    """

    slots: Array
    place: int
    form: Form
    results: tuple[int, ...]
    operands: frozenset[int]
    multiply: Callable[[], Array] | None
    adds: bool
    saturates: bool
    read: EngineRead | None
    group: int
    started: int
    warpgroup: int
    held: frozenset[int]


@dataclass(eq=False)
class Accumulator:
    """Results that are computed, and lie in registers once something but a product asks for those."""

    slots: Array
    form: Form
    results: tuple[int, ...]
    registers: frozenset[int]
    matrix: Array


def _is_overlapping(slots: Array, group: Array) -> bool:
    """Return whether some threads, in order, are of a warpgroup."""
    first = int(np.searchsorted(slots, group[0]))
    return first < len(slots) and bool(slots[first] <= group[-1])


class Products:
    """The products of a machine.

    Attributes:
        unfenced: Whether a thread has written a register since its last wgmma.fence: [registers of products, threads].
        dirty: Whether a thread may have written any.
    """

    def __init__(self, machine: Any):  # the Machine, whose module imports this one
        self.machine = machine
        rows = sorted(machine.program.product_registers)
        self.rows = {r: i for i, r in enumerate(rows)}
        self.unfenced = np.ones((len(rows), machine.count if rows else 0), np.bool_)
        self.dirty = np.ones(machine.count if rows else 0, np.bool_)
        self.flying: list[Product] = []
        self.commits: dict[int, int] = {}
        self.accumulators: dict[int, list[Accumulator]] = {}  # by warpgroup
        self.matrices: dict[tuple[int, Operand, int, int], Matrix] = {}  # by descriptor, form, CTA, and shift of the shadow
        self.clashes: dict[tuple[int, int], bool] = machine.program.product_clashes
        self.row_lists: dict[tuple[tuple[int, ...], tuple[int, ...]], Array] = {}

    def note_block(self, block: Block, slots: Array) -> None:
        """Check the registers that a block reads and writes against products in flight, and note what it writes."""
        for p in self.flying:
            met = block.touched & p.held
            if met and _is_overlapping(slots, p.slots):
                self._report(block, p, met, slots)
        part = find_slice(slots)
        if block.product_writes:
            self.dirty[part] = True
        for target, source in block.product_writes:
            if source is None:
                self.unfenced[self.rows[target]][part] = True
            elif source in self.rows:
                self.unfenced[self.rows[target]][part] = self.unfenced[self.rows[source]][part]

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
        part = find_slice(slots)
        if self.dirty[part].any():
            self.unfenced[:, part] = False
            self.dirty[part] = False

    def check_fence(self, slots: Array, results: tuple[int, ...], operands: tuple[int, ...], place: int) -> None:
        """Report registers of a product that were written since the last wgmma.fence."""
        m = self.machine
        if not self.dirty[slots[0] : slots[-1] + 1].any():
            return
        rows = self.row_lists.get((results, operands))
        if rows is None:
            rows = self.row_lists[results, operands] = np.array([self.rows[r] for r in (*results, *operands)], np.int64)
        if self.unfenced[rows, slots[0] : slots[-1] + 1].any():
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
        mine = [old for old in self.flying if old.warpgroup == p.warpgroup]
        for old in mine:
            pair = p.place, old.place
            if pair not in self.clashes:
                both = p.held.intersection(old.results)
                self.clashes[pair] = bool(both) and not (old.results == p.results and not both & p.operands)
            if self.clashes[pair]:
                who = describe_thread(m, int(p.slots[0]) + m.knowledge.first)
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
            self._compute([*mine, p])

    def _compute(self, products: list[Product]) -> None:
        """Compute products of a warpgroup that are not: one behind the other, as they accumulate."""
        for p in products:
            if p.multiply is not None:
                product, p.multiply = p.multiply(), None
                a = self._find_accumulator(p)
                a.matrix = add_product(p.form, product, a.matrix if p.adds else None, p.saturates)

    def _find_accumulator(self, p: Product) -> Accumulator:
        """Return where a product's results are kept, with what its registers hold if it adds to that."""
        kept, found = self.accumulators.setdefault(p.warpgroup, []), None
        for a in list(kept):
            if a.form == p.form and a.results == p.results:
                found = a
            elif a.registers & p.held:
                self._keep(a)
                kept.remove(a)
        if found is None:
            found = Accumulator(p.slots, p.form, p.results, frozenset(p.results), np.zeros(0))
            kept.append(found)
            if p.adds:
                part = slice(int(p.slots[0]), int(p.slots[-1]) + 1)
                found.matrix = unpack_results(p.form, np.stack([self.machine.regs[r][part] for r in p.results]))
        return found

    def _keep(self, a: Accumulator) -> None:
        """Set the registers of an accumulator."""
        for register, values in zip(a.results, pack_results(a.form, a.matrix)):
            self.machine.set_register(register, a.slots, values)

    def keep_results(self, registers: frozenset[int], slots: Array) -> None:
        """Set registers of threads whose products are computed: a block reads or writes some of them."""
        for group, kept in self.accumulators.items():
            for a in [a for a in kept if not a.registers.isdisjoint(registers) and _is_overlapping(slots, a.slots)]:
                self._keep(a)
                self.accumulators[group] = [b for b in self.accumulators[group] if b is not a]

    def commit(self, slots: Array) -> None:
        """Close the group of each warpgroup."""
        for first in self._list_groups(slots):
            self.commits[first] = self.commits.get(first, 0) + 1

    def _list_groups(self, slots: Array) -> list[int]:
        """Return the warpgroups of threads."""
        m = self.machine
        return list_distinct(slots // m.width * (m.width // 128 + 1) + slots % m.width // 128)

    def wait(self, slots: Array, keep: int, place: int) -> None:
        """Wait until all groups but the last few of each warpgroup are over."""
        m = self.machine
        groups = set(self._list_groups(slots))
        tick = m.next_tick(place)
        over = []
        for p in self.flying:
            if p.warpgroup in groups and p.group < self.commits.get(p.warpgroup, 0) - keep:
                over.append(p)
        self._compute(over)
        for p in over:
            m.knowledge.note_product(p.warpgroup, p.started, tick)
            if p.read is not None:
                p.read.over = tick
        done = set(map(id, over))
        self.flying = [p for p in self.flying if id(p) not in done]

    def finish(self) -> None:
        """Report products that nobody waited for."""
        m = self.machine
        for p in self.flying:
            who = describe_thread(m, int(p.slots[0]) + m.knowledge.first)
            m.findings.add(
                "M404", f"nobody waited for the product of {who}", make_span(m, p.place), "wgmma.wait_group 0 comes before the end"
            )
