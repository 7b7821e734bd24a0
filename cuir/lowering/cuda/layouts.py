"""Where elements lie: register tiles over the threads of a worker, swizzled panels of shared memory. Plain arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...syntax.types import PANEL_BYTES, TileType

Shape = Literal["one", "rows", "cols", "full"]
SWIZZLE_ROWS = 8  # rows after which the 128-byte swizzle repeats


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
