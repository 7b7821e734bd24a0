"""Descriptor arithmetic for wgmma operands in swizzled panels of shared memory."""

from __future__ import annotations

from dataclasses import dataclass

from ....checking.checked import SharedAlloc
from ....syntax.types import PANEL_BYTES

SWIZZLE_ROWS = 8  # period of the 128-byte swizzle
SBO = SWIZZLE_ROWS * PANEL_BYTES  # bytes between groups of 8 rows


@dataclass(frozen=True)
class Operand:
    """A wgmma operand in shared memory.

    Steps are in descriptor units of 16 bytes. K-major: the contiguous dim is the inner one of the product. MN-major: it is
    the outer one (`.T` of the memory is read).
    """

    alloc: SharedAlloc
    k_major: bool

    @property
    def leading(self) -> int:
        """Leading byte offset: between panels of an MN-major operand; unused (1) for a swizzled K-major one."""
        return 16 if self.k_major else self.alloc.rows * PANEL_BYTES

    def step(self, k: int) -> int:
        """Return the offset of the k-th slice of 32 bytes along the inner dim."""
        if self.k_major:
            per_panel = PANEL_BYTES // 32
            return k // per_panel * (self.alloc.rows * PANEL_BYTES >> 4) + k % per_panel * 2
        return k * (16 * PANEL_BYTES >> 4)

    def slab(self, s: int) -> int:
        """Return the offset of the s-th 64 rows of an `a` operand."""
        return s * (64 * PANEL_BYTES >> 4) if self.k_major else s * (self.alloc.rows * PANEL_BYTES >> 4)
