"""Layouts of the tile IR's register tiles over the threads of a worker, a warp or a warpgroup.

A `TileLayout` is part of a tile's type; with the tile's shape and the worker's threads it gives a `Layout`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from ...syntax.types import BF16, F16, DType
from ...text.notebook import ShownInNotebooks
from .layouts import ACCUMULATOR, LANES, Layout, repeat
from .linear_maps import LinearMap, read_map, split

HALVES = (F16, BF16)  # two to a register
WARP_ROWS = 16  # of an accumulator
WORD = 4  # bytes of a register


@dataclass(frozen=True)
class TileLayout:
    """The layout of a register tile of any shape in the threads of a worker.

    text: the atom of a warp, as `read_map` reads it. An output that it lacks is the same everywhere: a thread of a
    layout without columns holds one number for all columns of a row. in_turn: warps take repeats of the atom in turn;
    else each has the next rows.
    """

    name: str
    text: str
    meaning: str
    in_turn: bool = False

    @property
    def atom(self) -> LinearMap:
        """The layout of the first elements in a warp."""
        return read_map(self.text)

    @property
    def width(self) -> int:
        """Number of columns of the atom."""
        return 1 << dict(self.atom.outputs).get("column", 0)

    @functools.cached_property
    def varies_by_row(self) -> bool:
        """Rows have numbers of their own."""
        return "row" in dict(self.atom.outputs)

    @functools.cached_property
    def varies_by_column(self) -> bool:
        """Columns have numbers of their own."""
        return "column" in dict(self.atom.outputs)

    @functools.cached_property
    def holds_parts(self) -> bool:
        """A thread holds a part of a number: a summand."""
        return "part" in dict(self.atom.outputs)

    @functools.cached_property
    def is_accumulator(self) -> bool:
        """A thread holds its fragment of an accumulator of mma.sync or wgmma."""
        return self.text == ACCUMULATOR

    @functools.cached_property
    def is_fragment(self) -> bool:
        """A thread holds some columns of each row that it has of an accumulator."""
        return self.varies_by_column and _places_of_a_thread(self.atom, "row") == _places_of_a_thread(read_map(ACCUMULATOR), "row")

    @functools.cached_property
    def is_constant_along_rows(self) -> bool:
        """A thread holds the whole number of each of its rows, the same for all columns."""
        return not self.varies_by_column and not self.holds_parts

    @functools.cached_property
    def is_per_row(self) -> bool:
        """A thread holds one whole number for each of its rows."""
        return self.varies_by_row and self.is_constant_along_rows

    @functools.cached_property
    def is_per_column(self) -> bool:
        """A thread holds one number for each column of its fragment of an accumulator."""
        return not self.varies_by_row and self.has_accumulator_columns

    @functools.cached_property
    def has_accumulator_columns(self) -> bool:
        """A thread holds the columns that it has of an accumulator."""
        return self.varies_by_column and _places_of_a_thread(self.atom, "column") == _places_of_a_thread(read_map(ACCUMULATOR), "column")

    def agrees_with(self, other: TileLayout) -> bool:
        """Return whether a thread holds the same rows and columns of both, as far as both tell them apart."""
        return self == other or all(
            name not in dict(other.atom.outputs) or _places_of_a_thread(self.atom, name) == _places_of_a_thread(other.atom, name)
            for name, _ in self.atom.outputs
        )

    def of(self, shape: tuple[int, int], threads: int) -> Layout:
        """Return the layout of a tile [rows, columns] over a worker's threads.

        Sides that are no multiple of the atom's leave registers without an element.
        """
        return _lay_out(self, shape, threads)

    def count(self, shape: tuple[int, int], threads: int) -> int:
        """Return the number of a tile's elements in a thread."""
        return self.of(shape, threads).count

    def count_packed(self, element: DType) -> int:
        """Return the number of elements of a tile that a register holds."""
        if self.name == WORDS.name:
            return WORD // element.itemsize
        return 2 if element in HALVES and self.varies_by_row and self.varies_by_column else 1


@functools.cache
def _lay_out(layout: TileLayout, shape: tuple[int, int], threads: int) -> Layout:
    atom, warps = layout.atom, threads // LANES
    if not layout.in_turn:
        for _ in range(warps.bit_length() - 1):
            atom = atom.extend("warp", {"row": 1 << dict(atom.outputs)["row"]} if layout.varies_by_row else {})
    sizes = dict(atom.outputs)
    repeats = [(n, -(-size >> sizes[n])) for n, size in (("column", shape[1]), ("row", shape[0])) if n in sizes]
    return repeat(atom, *repeats, turns=warps if layout.in_turn else 1)


@functools.cache
def _places_of_a_thread(atom: LinearMap, output: str) -> tuple[list[int], list[int]]:
    """Return the rows (or columns) that the bits of lanes and of registers stand for."""
    if output not in dict(atom.outputs):
        return [], []
    of_lanes, of_registers = ([split(atom.outputs, c)[output] for c in atom.columns_of(name)] for name in ("lane", "register"))
    return of_lanes, [c for c in of_registers if c]


FULL = TileLayout("full", ACCUMULATOR, "a thread's fragment of the accumulator of wgmma or mma.sync")
ROWS = TileLayout("rows", "register: r3 | lane: . . r0 r1 r2", "one number for each row of the thread's fragment")
COLUMNS = TileLayout("columns", "register: c0 | lane: c1 c2 . . .", "one number for each column of the thread's fragment")
ONE = TileLayout("one", "register: | lane: . . . . .", "the number")
PARTIAL = TileLayout("partial", "register: r3 | lane: p0 p1 r0 r1 r2", "the thread's share of the sum of each row of its fragment")
BY_LANE = TileLayout("lanes", "register: | lane: c0 c1 c2 c3 c4", "every 32nd number")
CHUNKS = TileLayout(
    "chunks", "register: c0 c1 c2 c3 | lane: c4 c5 r0+r2 r0 r1", "pieces of a row, each of 16 neighbouring elements", in_turn=True
)
DEALT = TileLayout(
    "dealt",
    "register: c1 r3 c0 | lane: c2 c3 r0 r1 r2",
    "four neighbours of each 16 columns of the fragment's rows, those of even numbers first",
)
FOURS = TileLayout("fours", "register: c0 r3 c1 | lane: c2 c3 r0 r1 r2", "four neighbours of each 16 columns of the fragment's rows")
WORDS = TileLayout(
    "words",
    "register: c0 c1 r3 | lane: c2 c3 r0 r1 r2",
    "four neighbours of each 16 columns of the fragment's rows, those of 8 bits in a register",
)
EIGHTS = TileLayout("eights", "register: c0 r3 c1 c2 | lane: c3 c4 r0 r1 r2", "eight neighbours of each 32 columns of the fragment's rows")
LAYOUTS = {layout.name: layout for layout in (FULL, ROWS, COLUMNS, ONE, PARTIAL, BY_LANE, CHUNKS, DEALT, FOURS, WORDS, EIGHTS)}
# conversions that have code, from one layout to another
CONVERSIONS = ((BY_LANE, COLUMNS), (DEALT, FULL))


def natural_layout(rows: int, columns: int) -> TileLayout:
    """Return the layout of a tile of the language."""
    if columns == 1:
        return ONE if rows == 1 else ROWS
    return COLUMNS if rows == 1 else FULL


@dataclass(frozen=True)
class Fragment(ShownInNotebooks):
    """A register tile [rows, cols] over a worker of 32 or 128 threads, as an accumulator of mma.sync or wgmma lies.

    In each slab of `slab` rows a warp has 16, and a thread has two rows of each group of 8 columns. Element i of a
    thread is ((slab * groups + group) * 2 + row) * 2 + column.
    """

    html_renderer = "pages.fragment_picture:render_fragment_layout"

    rows: int
    cols: int
    threads: int

    @property
    def slab(self) -> int:
        """Number of rows that the worker's warps hold together."""
        return self.threads // LANES * WARP_ROWS

    @property
    def slabs(self) -> int:
        """Number of slabs of the tile."""
        return -(-self.rows // self.slab)

    @property
    def groups(self) -> int:
        """Number of groups of 8 columns."""
        return -(-self.cols // 8)

    @property
    def row_values(self) -> int:
        """Number of different rows in a thread."""
        return 2 * self.slabs

    @property
    def count(self) -> int:
        """Number of elements in a thread."""
        return 4 * self.groups * self.slabs

    def element(self, thread: int, i: int) -> tuple[int, int]:
        """Return row and column of a thread's element i of a full tile."""
        place = FULL.of((self.rows, self.cols), self.threads).place(i, thread % LANES, thread // LANES)
        return place["row"], place["column"]

    def row_offset(self, r: int) -> int:
        """Return the row of the thread's r-th row value, less its first row."""
        return ROWS.of((self.rows, 1), self.threads).place(r)["row"]
