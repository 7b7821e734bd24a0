"""Fragment layouts: the elements of a tile in each thread of a worker, and the number of registers."""

from __future__ import annotations

from dataclasses import dataclass

from ...syntax.types import BF16, F16
from ...text.notebook import ShownInNotebooks
from .ir_types import TileT

HALVES = (F16, BF16)  # two to a register in a full tile
LANES = 32  # of a warp


@dataclass(frozen=True)
class Fragment(ShownInNotebooks):
    """A register tile [rows, cols] over a worker of 32 or 128 threads.

    It is the accumulator layout of mma.sync and wgmma (PTX ISA, m64nNk16, matrix D). The thread of lane l in warp w of
    the worker holds, in slab s of `slab` rows, rows s * slab + 16 w + l / 4 + {0, 8} and columns 2 (l % 4) + 8 j + {0,
    1}. Element i of a full tile is ((s * groups + j) * 2 + half) * 2 + e.
    """

    html_renderer = "pages.fragment_picture:render_fragment_layout"

    rows: int
    cols: int
    threads: int

    @property
    def slab(self) -> int:
        """Number of rows that the worker's warps hold together."""
        return self.threads // 2

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
        lane, warp = thread % 32, thread // 32
        e, half, j, s = i % 2, i // 2 % 2, i // 4 % self.groups, i // 4 // self.groups
        return s * self.slab + warp * 16 + lane // 4 + 8 * half, 2 * (lane % 4) + 8 * j + e

    def row_offset(self, r: int) -> int:
        """Return the row of the thread's r-th row value, less its first row."""
        return self.slab * (r // 2) + 8 * (r % 2)


def fragment(t: TileT, threads: int) -> Fragment:
    """Return the fragment layout of a tile over a worker's threads."""
    return Fragment(*t.shape, threads)


def count_of(t: TileT, threads: int) -> int:
    """Return the number of a tile's elements in a thread."""
    frag = fragment(t, threads)
    if t.layout.data == "chunks":
        return t.shape[0] * t.shape[1] // threads
    if t.layout.data == "lanes":
        return -(-t.shape[1] // LANES)
    return {"one": 1, "rows": frag.row_values, "partial": frag.row_values, "columns": 2 * frag.groups, "full": frag.count}[t.layout.data]


def is_packed(t: TileT) -> bool:
    """Return whether registers hold two elements of a tile each."""
    return t.element in HALVES and t.layout.data in ("full", "chunks")


def registers(t: TileT, threads: int) -> int:
    """Return the number of 32-bit registers that a tile takes in each thread."""
    return count_of(t, threads) // (2 if is_packed(t) else 1)
