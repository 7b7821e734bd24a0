"""Tensors in device memory, and boxes of them: the elements that a batch reaches, and moves of data.

Accesses to elements are recorded in the tensor's shadow (shadows.py). Invariant: what lies outside of a tensor is
never touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from typing import Any

import numpy as np
import torch

from ..checking.checked import TensorParam
from .shadows import Shadow
from .state import State
from .values import HELD_DTYPES

Sum = Callable[[torch.Tensor, torch.Tensor, torch.dtype], torch.Tensor]  # (old, new, dtype) -> sum rounded to the dtype


class TensorArg:
    """A tensor argument with its layout in memory and its shadow, shared by all batches of a launch."""

    def __init__(self, param: TensorParam, t: torch.Tensor, modes: Set[str], watched: bool, between: bool, undefined: bool = False):
        """Describe the tensor for the machine.

        modes: what the kernel does to it ("read", "write", "add"). watched: whether faults are detected. between,
        undefined: see Shadow.
        """
        self.param, self.name, self.t = param, param.name, t
        self.shape = tuple(int(n) for n in t.shape)
        self.strides = tuple(int(s) for s in t.stride())
        extent = 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides)) if t.numel() else 0
        self.flat = torch.as_strided(t, (extent,), (1,), t.storage_offset())
        self.storage_dtype = HELD_DTYPES[param.dtype]
        commute = len(modes) < 2 and "write" not in modes
        needless = not watched or not t.numel() or (commute and not undefined)
        self.shadow = None if needless else Shadow(self.name, self.shape, t.device, between, undefined)

    # ---- boxes: an access is entered when it is issued, data move when it is done
    def fetch(self, box: BoxRef, out: torch.Tensor) -> None:
        """Fill `out` [lanes, R, C] with the box of each lane; elements outside of the tensor read 0."""
        target = out.view(out.shape[0], *box.sizes)
        if not box.inside():
            target.zero_()
        for lanes, part, offsets in box.pieces(self.strides):
            _move_each(self.flat, self.strides, part, offsets, target[(lanes, *part)], _assign)

    def deliver(self, box: BoxRef, values: torch.Tensor, lanes: int, add: Sum | None) -> None:
        """Write `values` [lanes or 1, R, C], or add them by `add`; drop elements outside of the tensor."""
        source = values.expand(lanes, *values.shape[1:]).view(lanes, *box.sizes)
        for chosen, part, offsets in box.pieces(self.strides):
            chunk = source[(chosen, *part)]
            if add or not isinstance(offsets, np.ndarray):
                for lane, offset in enumerate(offsets if isinstance(offsets, np.ndarray) else [offsets] * chunk.shape[0]):
                    region = get_region(self.flat, self.strides, part, int(offset))
                    if add:
                        region.copy_(add(region.to(self.storage_dtype), chunk[lane], region.dtype))  # one rounding, as by engines
                    else:
                        region.copy_(chunk[lane])
            else:
                _move_each(self.flat, self.strides, part, offsets, chunk, _deliver)

    # ---- elements
    def offsets(self, indices: list[Any], strides: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor, bool]:
        """Compute offsets in memory of index tiles and scalars, one for each dim, by `strides`.

        Returns the offsets, whether each is inside of the tensor, and whether all are.
        """
        base, fits = 0, True  # from indices equal for all elements: tensors for them would cost more than the rest
        tiles: list[tuple[torch.Tensor, int, int]] = []
        for i, stride, size in zip(indices, strides, self.shape):
            if isinstance(i, np.ndarray):
                i = torch.from_numpy(i).to(self.t.device).reshape(-1, 1, 1)
            if isinstance(i, torch.Tensor):
                tiles.append((i, stride, size))
            else:
                base, fits = base + int(i) * stride, fits and bool(0 <= i < size)
        offset: Any = None
        masks: list[torch.Tensor] = []  # which elements of an index are inside of its dim, of indices with others
        for i, stride, size in tiles:
            term = i.to(torch.int64)
            term = term if stride == 1 else term * stride
            # the base goes to the first term, a row or a column, which is smaller than their sum
            offset = offset + term if offset is not None else term + base if base else term
            if not _are_within(i, size):
                masks.append((i >= 0) & (i < size))
        if offset is None:
            offset = torch.full((1, 1, 1), base, dtype=torch.int64, device=self.t.device)
        inside = torch.full((1, 1, 1), fits, dtype=torch.bool, device=self.t.device)
        for within in masks:
            inside, fits = inside & within, False
        return offset, inside.expand(offset.shape), fits


def _are_within(index: torch.Tensor, size: int) -> bool:
    """Return whether all elements lie in [0, size), by one pass over them.

    A tile of truth values would take five operations.
    """
    if not index.numel():
        return True
    low, high = index.aminmax()
    return bool(low.item() >= 0 and high.item() < size)


class BoxRef(State):
    """A box of a tensor: for each dim its start (a number, or one for each lane) and length.

    A dropped dim has length 1.
    """

    def __init__(self, tensor: TensorArg, starts: tuple[Any, ...], sizes: tuple[int, ...], text: str):
        self.tensor, self.starts, self.sizes, self.text = tensor, starts, sizes, text

    def fetch(self, out: torch.Tensor) -> None:
        """Fill `out` [lanes, R, C] with the box of each lane; elements outside of the tensor read 0."""
        self.tensor.fetch(self, out)

    def inside(self) -> bool:
        return all(
            (s >= 0).all() and (s + n <= dim).all() if isinstance(s, np.ndarray) else 0 <= s <= dim - n
            for s, n, dim in zip(self.starts, self.sizes, self.tensor.shape)
        )

    def columns_inside(self) -> int:
        """Count the columns, from the box's first, before the end of the tensor; of the lane that has most."""
        start = self.starts[-1]
        first = int(start.min()) if isinstance(start, np.ndarray) else int(start)
        return max(0, min(self.sizes[-1], self.tensor.shape[-1] - first))

    def pieces(self, strides: tuple[int, ...]) -> Iterator[tuple[slice, tuple[slice, ...], Any]]:
        """Yield the parts inside of the tensor.

        Each is the lanes that are clipped alike, the slice of each dim of the box, and the flat offset of each lane.
        """
        low, high, strided = [], [], False
        for s, n, dim in zip(self.starts, self.sizes, self.tensor.shape):
            strided |= isinstance(s, np.ndarray)
            low.append(np.maximum(0, -s) if isinstance(s, np.ndarray) else max(0, -s))
            high.append(np.minimum(n, dim - s) if isinstance(s, np.ndarray) else min(n, dim - s))
        if not strided:  # the common case, of one lane
            if all(a < b for a, b in zip(low, high)):
                yield slice(None), tuple(map(slice, low, high)), sum((s + a) * stride for s, a, stride in zip(self.starts, low, strides))
            return
        alike = all(not isinstance(x, np.ndarray) or (x == x[0]).all() for x in (*low, *high))
        lanes = max((len(s) for s in self.starts if isinstance(s, np.ndarray)), default=1)
        for lane in [None] if alike else range(lanes):
            at = 0 if lane is None else lane
            lo = [int(x[at]) if isinstance(x, np.ndarray) else x for x in low]
            hi = [int(x[at]) if isinstance(x, np.ndarray) else x for x in high]
            if all(a < b for a, b in zip(lo, hi)):
                starts = self.starts if lane is None else [s[lane] if isinstance(s, np.ndarray) else s for s in self.starts]
                offsets = sum((s + a) * stride for s, a, stride in zip(starts, lo, strides))
                yield slice(None) if lane is None else slice(lane, lane + 1), tuple(slice(a, b) for a, b in zip(lo, hi)), offsets

    def lanes_overlap(self, lanes: int) -> bool:
        """Return whether the boxes of two lanes share an element of the tensor."""
        if lanes == 1:
            return False
        for s, n in zip(self.starts, self.sizes):
            if isinstance(s, np.ndarray) and n and (gaps := np.diff(s)).size and ((gaps >= n).all() or (gaps <= -n).all()):
                return False  # the common case: in one dim, the boxes follow each other
        shared = ~np.eye(lanes, dtype=bool)
        for s, n, dim in zip(self.starts, self.sizes, self.tensor.shape):
            low = np.broadcast_to(np.clip(s, 0, dim), lanes)
            high = np.broadcast_to(np.clip(np.add(s, n), 0, dim), lanes)
            shared &= np.maximum(low[:, None], low[None]) < np.minimum(high[:, None], high[None])
            if not shared.any():
                return False
        return True


class GatherRef(State):
    """Elements of a tensor at index tiles and scalars, one for each dim: [lanes or 1, R, C]."""

    def __init__(self, tensor: TensorArg, indices: list[Any], text: str):
        self.tensor, self.indices, self.text = tensor, indices, text

    def fetch(self, out: torch.Tensor) -> None:
        """Fill `out` [lanes, R, C] with the elements; those outside of the tensor read 0."""
        if not self.tensor.t.numel():
            out.zero_()
            return
        offset, inside, whole = self.tensor.offsets(self.indices, self.tensor.strides)
        elements = self.tensor.flat[offset if whole else torch.where(inside, offset, 0)].to(out.dtype)
        out.copy_(elements if whole else elements.masked_fill_(~inside, 0))


def get_region(flat: torch.Tensor, strides: tuple[int, ...], part: tuple[slice, ...], offset: int) -> torch.Tensor:
    """Return the view of a part of a box at an offset into `flat`."""
    return torch.as_strided(flat, [p.stop - p.start for p in part], strides, flat.storage_offset() + offset)


def _assign(region: torch.Tensor, chunk: torch.Tensor) -> None:
    chunk.copy_(region)


def _deliver(region: torch.Tensor, chunk: torch.Tensor) -> None:
    region.copy_(chunk)


def _move_each(flat: torch.Tensor, strides: tuple[int, ...], part: tuple[slice, ...], offsets: Any, chunk: torch.Tensor, move: Any) -> None:
    """Move between the boxes of all lanes at `offsets` and `chunk` [lanes, ...].

    One operation suffices if the offsets are equally spaced.
    """
    if not isinstance(offsets, np.ndarray):
        move(get_region(flat, strides, part, int(offsets)), chunk)
        return
    step = int(offsets[1] - offsets[0]) if len(offsets) > 1 else 0
    if step >= 0 and (np.diff(offsets) == step).all():
        shape = (len(offsets), *(p.stop - p.start for p in part))
        move(torch.as_strided(flat, shape, (step, *strides), flat.storage_offset() + int(offsets[0])), chunk)
        return
    for lane, offset in enumerate(offsets):
        move(get_region(flat, strides, part, int(offset)), chunk[lane])
