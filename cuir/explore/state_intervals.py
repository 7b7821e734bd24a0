"""Elements of a tensor as intervals of their numbers, row by row (C order)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ..sync.byte_ranges import Intervals


def compute_box_intervals(shape: Sequence[int], starts: Sequence[Any], sizes: Sequence[int]) -> Intervals:
    """Return the elements of a box that lie inside of a tensor; `starts` and `sizes` for each dim."""
    offsets, stride = np.zeros(1, dtype=np.int64), 1
    run, dense = 1, True  # contiguous elements
    for start, size, dim in zip(reversed(starts), reversed(sizes), reversed(shape)):
        start = int(np.asarray(start).reshape(-1)[0])
        lo, hi = max(0, start), min(dim, start + size)
        if lo >= hi:
            return ()
        if dense:
            offsets, run = offsets + lo * stride, run * (hi - lo)
            dense = hi - lo == dim
        else:
            offsets = (np.arange(lo, hi)[:, None] * stride + offsets[None]).reshape(-1)
        stride *= dim
    return _merge(np.sort(offsets), run)


def compute_box_coordinates(starts: Sequence[Any], sizes: Sequence[int]) -> list[torch.Tensor]:
    """Return index tiles [1, R, C] of the elements of a box, for each dim.

    All dims but the last flatten into rows.
    """
    rows = int(np.prod(sizes[:-1]))
    grid = np.indices(tuple(sizes)).reshape(len(sizes), 1, rows, sizes[-1])
    return [torch.from_numpy(g + int(np.asarray(s).reshape(-1)[0])) for g, s in zip(grid, starts)]


def compute_element_intervals(shape: Sequence[int], indices: Sequence[Any], mask: torch.Tensor | None) -> Intervals:
    """Return the elements of an access as intervals of flat offsets.

    Elements outside the tensor, or where the mask is False, are left out.

    Args:
        indices: for each dim an index tile [1, R, C] or a number.
    """
    offset: Any = torch.zeros((1, 1, 1), dtype=torch.int64)
    inside: Any = torch.ones((1, 1, 1), dtype=torch.bool) if mask is None else mask.cpu()
    stride = 1
    for i, dim in zip(reversed(indices), reversed(shape)):
        i = i.cpu().to(torch.int64) if isinstance(i, torch.Tensor) else int(np.asarray(i).reshape(-1)[0])
        offset = offset + i * stride
        inside = inside & (i >= 0) & (i < dim)
        stride *= dim
    offset, inside = torch.broadcast_tensors(offset, inside)
    return _merge(np.unique(offset[inside].numpy()), 1)


def _merge(starts: np.ndarray, run: int) -> Intervals:
    """Return intervals of `run` elements at sorted starts, merged where they touch."""
    if not len(starts):
        return ()
    breaks = np.flatnonzero(np.diff(starts) != run) + 1
    first, last = starts[np.concatenate(([0], breaks))], starts[np.concatenate((breaks - 1, [len(starts) - 1]))] + run
    return tuple(zip(first.tolist(), last.tolist()))
