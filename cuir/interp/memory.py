"""Shared memory of a CTA: arrays as values, the bytes that views cover, the bytes that are defined.

The addresses of the panelled layout are computed here; bytes count from the start of the CTA's shared memory. f16 and
bf16 arrays are held as float32 (values rounded to the dtype), so that a product
needs no conversion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from ..checking.checked import SharedAlloc
from ..sync.byte_ranges import Intervals
from ..syntax.types import PANEL_BYTES
from .state import State
from .values import HELD_DTYPES, POISON


@dataclass(frozen=True)
class SharedRef:
    """A view of a shared array of one CTA: its index into the held array, and the bytes it covers."""

    cta: int
    alloc: SharedAlloc
    index: tuple[int | slice, ...]
    transposed: bool
    intervals: Intervals
    nbytes: int
    text: str

    def values(self, shared: Sequence[Shared]) -> torch.Tensor:
        """Return a view [lanes, R, C] of the held array; `shared`: of each CTA of the cluster."""
        t = shared[self.cta].arrays[self.alloc.name][(slice(None), *self.index)]
        return t.transpose(1, 2) if self.transposed else t

    def first_columns(self, count: int) -> SharedRef:
        """Return the first `count` columns of the view, which is not transposed."""
        *lead, columns = self.index
        assert isinstance(columns, slice) and not self.transposed
        index = (*lead, slice(columns.start or 0, (columns.start or 0) + count))
        return replace(self, index=index, intervals=compute_view_intervals(self.alloc, index))

    def at(self, cta: int) -> SharedRef:
        """Return the reference to the same shared memory offset in another CTA of the cluster."""
        return self if cta == self.cta else replace(self, cta=cta)


class Shared(State):
    """The arrays of one CTA in all lanes, poisoned until written."""

    def __init__(self, allocs: Mapping[str, SharedAlloc], lanes: int, device: torch.device):
        self.arrays = {
            a.name: torch.full((lanes, *a.dims), POISON[a.dtype], dtype=HELD_DTYPES[a.dtype], device=device) for a in allocs.values()
        }
        self.defined = {a.name: bytearray(a.nbytes) for a in allocs.values()}
        self.aliases = {
            a.name: tuple(b for b in allocs.values() if b is not a and a.offset < b.offset + b.nbytes and b.offset < a.offset + a.nbytes)
            for a in allocs.values()
        }

    def is_undefined(self, ref: SharedRef) -> bool:
        """Return whether a byte of the view was never written, or last written through an array over it."""
        defined, base = self.defined[ref.alloc.name], ref.alloc.offset
        return any(defined.find(0, lo - base, hi - base) >= 0 for lo, hi in ref.intervals)

    def wrote(self, ref: SharedRef) -> None:
        """Mark the view as defined, and other arrays over the same bytes as undefined."""
        defined, base = self.defined[ref.alloc.name], ref.alloc.offset
        for lo, hi in ref.intervals:
            defined[lo - base : hi - base] = b"\1" * (hi - lo)
        for alias in self.aliases[ref.alloc.name]:
            alias_defined = self.defined[alias.name]
            for lo, hi in ref.intervals:
                a, b = max(0, lo - alias.offset), min(len(alias_defined), hi - alias.offset)
                if a < b:
                    alias_defined[a:b] = bytes(b - a)


def count_bytes(alloc_cols: int, rows: int, itemsize: int) -> int:
    """Return the bytes of rows of shared memory, each padded to 16 bytes."""
    return rows * (-(-alloc_cols * itemsize // 16) * 16)


def compute_view_intervals(alloc: SharedAlloc, index: tuple[int | slice, ...]) -> Intervals:
    """Compute the byte ranges that a view covers.

    index: an int or a slice with known bounds for each dim. Layout: see `SharedAlloc`.
    """
    *lead, row, col = [0, *index] if len(alloc.dims) == 1 else index
    stages = [0]
    for dim, i in zip(alloc.dims, lead if len(alloc.dims) > 1 else [], strict=False):
        stages = [s * dim + k for s in stages for k in _get_range(i)]
    rows, cols = _get_range(row), _get_range(col)
    size = alloc.dtype.itemsize
    ranges: list[tuple[int, int]] = []
    for stage in stages:
        base = alloc.offset + stage * alloc.rows * alloc.row_bytes
        if alloc.panelled:
            width = PANEL_BYTES // size
            for panel in range(cols.start // width, (cols.stop - 1) // width + 1):
                start = base + panel * alloc.rows * PANEL_BYTES
                first, last = max(cols.start, panel * width) - panel * width, min(cols.stop, (panel + 1) * width) - panel * width
                if last - first == width:
                    ranges.append((start + rows.start * PANEL_BYTES, start + rows.stop * PANEL_BYTES))
                else:
                    ranges.extend((start + r * PANEL_BYTES + first * size, start + r * PANEL_BYTES + last * size) for r in rows)
        else:
            ranges.extend((base + r * alloc.row_bytes + cols.start * size, base + r * alloc.row_bytes + cols.stop * size) for r in rows)
    merged: list[tuple[int, int]] = []
    for lo, hi in sorted(ranges):
        if merged and merged[-1][1] == lo:
            merged[-1] = (merged[-1][0], hi)
        else:
            merged.append((lo, hi))
    return tuple(merged)


def _get_range(i: int | slice) -> range:
    return range(i.start, i.stop) if isinstance(i, slice) else range(i, i + 1)
