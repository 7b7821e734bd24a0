"""Where elements lie: register tiles over the threads of a worker, swizzled panels of shared memory, wgmma descriptors. Plain arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...checking.checked import SharedAlloc
from ...syntax.types import PANEL_BYTES, TileType

Shape = Literal["one", "rows", "cols", "full"]
SWIZZLE_ROWS = 8  # rows after which the 128-byte swizzle repeats
SBO = SWIZZLE_ROWS * PANEL_BYTES  # bytes between groups of 8 rows


def shape_of(tile: TileType) -> Shape:
    if tile.cols == 1:
        return "one" if tile.rows == 1 else "rows"
    return "cols" if tile.rows == 1 else "full"


@dataclass(frozen=True)
class Fragment:
    """A register tile [rows, cols] over a worker of 32 or 128 threads: the accumulator layout of mma.sync and wgmma (PTX ISA, m64nNk16, matrix D).

    The thread of lane l in warp w of the worker holds, in slab s of `slab` rows, rows s * slab + 16 w + l / 4 + {0, 8} and columns
    2 (l % 4) + 8 j + {0, 1}. Element i of a full tile is ((s * groups + j) * 2 + half) * 2 + e.
    """

    rows: int
    cols: int
    threads: int

    @property
    def slab(self) -> int:
        return self.threads // 2

    @property
    def slabs(self) -> int:
        return -(-self.rows // self.slab)

    @property
    def groups(self) -> int:
        return -(-self.cols // 8)

    @property
    def row_values(self) -> int:
        """Different rows that a thread holds."""
        return 2 * self.slabs

    @property
    def count(self) -> int:
        """Elements that a thread holds."""
        return 4 * self.groups * self.slabs

    def element(self, thread: int, i: int) -> tuple[int, int]:
        """Row and column of a thread's element i of a full tile."""
        lane, warp = thread % 32, thread // 32
        e, half, j, s = i % 2, i // 2 % 2, i // 4 % self.groups, i // 4 // self.groups
        return s * self.slab + warp * 16 + lane // 4 + 8 * half, 2 * (lane % 4) + 8 * j + e

    def row_offset(self, r: int) -> int:
        """Row of the thread's r-th row value, less its first row."""
        return self.slab * (r // 2) + 8 * (r % 2)


def swizzled(row: int, byte: int, rows: int) -> int:
    """Offset in a panelled array of `rows` rows a stage: panels of rows x 128 bytes, chunks of 16 bytes permuted by row % 8."""
    panel, within = divmod(byte, PANEL_BYTES)
    chunk, rest = divmod(within, 16)
    return panel * rows * PANEL_BYTES + row * PANEL_BYTES + ((chunk ^ row % SWIZZLE_ROWS) << 4) + rest


@dataclass(frozen=True)
class Operand:
    """A wgmma operand in shared memory. Steps are in descriptor units of 16 bytes.

    K-major: the contiguous dim is the inner one of the product. MN-major: it is the outer one (`.T` of the memory is read).
    """

    alloc: SharedAlloc
    k_major: bool

    @property
    def leading(self) -> int:
        """Leading byte offset: between panels of an MN-major operand; unused (1) for a swizzled K-major one."""
        return 16 if self.k_major else self.alloc.rows * PANEL_BYTES

    def step(self, k: int) -> int:
        """Offset of the k-th slice of 16 along the inner dim."""
        if self.k_major:
            per_panel = PANEL_BYTES // 32
            return k // per_panel * (self.alloc.rows * PANEL_BYTES >> 4) + k % per_panel * 2
        return k * (16 * PANEL_BYTES >> 4)

    def slab(self, s: int) -> int:
        """Offset of the s-th 64 rows of an `a` operand."""
        return s * (64 * PANEL_BYTES >> 4) if self.k_major else s * (self.alloc.rows * PANEL_BYTES >> 4)


@dataclass(frozen=True)
class Storage:
    """How a tile name is kept. linear: `count` numbers a row (see index_tiles); packed: pairs of halves; condition: texts, nothing stored."""

    kind: str  # "array" | "packed" | "linear" | "condition"
    ctype: str
    count: int
    slope: int = 0
