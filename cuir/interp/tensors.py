"""Tensors in device memory: boxes, gathers, scatters and elements of a batch. Who accessed which element is kept in its shadow (shadows.py)."""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..checking.checked import TensorParam
from .faults import fault
from .races import Actor, Event
from .shadows import Access, Shadow
from .state import State
from .values import HELD, STORED

if TYPE_CHECKING:
    from .machine import Machine

BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32}  # by bytes of an element


class TensorArg:
    """A tensor argument, with what the machine needs to reach it: shared by all batches of a launch."""

    def __init__(self, param: TensorParam, t: torch.Tensor, modes: Set[str], watched: bool, between: bool):
        """modes: what the kernel does to it ("read", "write", "add"). watched: whether faults are looked for. between: see Shadow."""
        self.param, self.name, self.t = param, param.name, t
        self.shape = tuple(int(n) for n in t.shape)
        self.strides = tuple(int(s) for s in t.stride())
        extent = 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides)) if t.numel() else 0
        self.flat = torch.as_strided(t, (extent,), (1,), t.storage_offset())
        self.held = HELD[param.dtype]
        commute = len(modes) < 2 and "write" not in modes
        self.shadow = Shadow(self.name, self.shape, t.device, between) if watched and not commute and t.numel() else None

    # ---- boxes: an access is entered when it is issued, data move when it is done
    def enter_read(self, m: Machine, actor: Actor, box: BoxRef, proxy: str, done: Event | None, awaited: str = "") -> Access | None:
        """Checks a read against the accesses before it. `done`: None while an engine may still do it. Gives what was entered, if anything."""
        return self._mark(m, actor, box, "read", proxy, done, awaited)

    def enter_write(self, m: Machine, actor: Actor, box: BoxRef, add: bool, proxy: str, done: Event | None) -> Access | None:
        """Checks a write against the accesses before it."""
        return self._mark(m, actor, box, "add" if add else "write", proxy, done)

    def fetch(self, box: BoxRef, out: torch.Tensor) -> None:
        """Fills `out` [lanes, R, C] with the box of each lane; elements outside of the tensor read 0."""
        target = out.view(out.shape[0], *box.sizes)
        if not box.inside():
            target.zero_()
        for lanes, part, offsets in box.pieces(self.strides):
            _each(self.flat, self.strides, part, offsets, target[(lanes, *part)], _assign)

    def deliver(self, box: BoxRef, values: torch.Tensor, lanes: int, add: bool) -> None:
        """Writes `values` [lanes or 1, R, C], dropping what lies outside of the tensor."""
        source = values.expand(lanes, *values.shape[1:]).view(lanes, *box.sizes)
        for chosen, part, offsets in box.pieces(self.strides):
            chunk = source[(chosen, *part)]
            if add or not isinstance(offsets, np.ndarray):
                for lane, offset in enumerate(np.broadcast_to(offsets, chunk.shape[0])):
                    region = _region(self.flat, self.strides, part, int(offset))
                    if add:
                        region.copy_(region.to(self.held) + chunk[lane])  # one rounding, as the engine's
                    else:
                        region.copy_(chunk[lane])
            else:
                _each(self.flat, self.strides, part, offsets, chunk, _deliver)

    def _mark(self, m: Machine, actor: Actor, box: BoxRef, mode: str, proxy: str, done: Event | None, awaited: str = "") -> Access | None:
        shadow = self.shadow
        if shadow is None:
            return None
        if mode == "write" and box.lanes_overlap(len(m.clusters)):
            raise shadow.overlapping_lanes(m, actor)
        access = shadow.enter(m, actor, mode, proxy, done, awaited)
        for lanes, part, offsets in box.pieces(shadow.strides):
            chosen = np.arange(len(m.clusters))[lanes]
            for lane, offset in zip(chosen.tolist(), np.broadcast_to(offsets, len(chosen)).tolist()):
                shadow.region(m, actor, access, lane, _region(shadow.flat, shadow.strides, part, offset))
        return access

    # ---- gathers and scatters
    def gather(self, m: Machine, actor: Actor, indices: list[Any]) -> torch.Tensor:
        """[lanes or 1, R, C] of index tiles and scalars, one for each dim; outside of the tensor 0."""
        offset, inside = self._offsets(indices, self.strides)
        if not self.t.numel():
            return torch.zeros(offset.shape, dtype=self.held, device=self.t.device)
        taken = self.flat[torch.where(inside, offset, 0)].to(self.held)
        self._mark_elements(m, actor, indices, inside, "read")
        return taken.masked_fill_(~inside, 0)

    def scatter(self, m: Machine, actor: Actor, indices: list[Any], values: Any, mask: torch.Tensor | None, add: bool) -> None:
        """Writes values to the elements at the indices, where inside of the tensor and mask is True."""
        offset, inside = self._offsets(indices, self.strides)
        lanes = len(m.clusters)
        rows, cols = values.shape[1:] if isinstance(values, torch.Tensor) else (1, 1)
        shape = (lanes, max(rows, offset.shape[1]), max(cols, offset.shape[2]))  # torch.broadcast_shapes would import sympy: a second
        inside = (inside if mask is None else inside & mask).expand(shape)
        if not self.t.numel():
            return
        self._mark_elements(m, actor, indices, inside, "add" if add else "write")
        where = offset.expand(shape)[inside]
        data = torch.as_tensor(values, dtype=self.held, device=self.t.device).expand(shape)[inside].to(self.flat.dtype)
        self.flat.index_put_((where,), data, accumulate=add)
        if not add and m.launch.detect and where.numel() > 1:
            bits = BITS[self.flat.element_size()]
            lost = self.flat[where].view(bits) != data.view(bits)
            if bool(lost.any()):
                raise self._two_values(m, actor, where, lost, inside)

    def _two_values(self, m: Machine, actor: Actor, where: torch.Tensor, lost: torch.Tensor, inside: torch.Tensor) -> Exception:
        """Elements of one tile that differ and go to one place. where: their places; lost: those whose value is not there; inside: which of the tile's."""
        one = int(lost.nonzero()[0])
        other = int(((where == where[one]) & ~lost).nonzero()[0])
        (lane, *a), (_, *b) = inside.nonzero()[[min(one, other), max(one, other)]].tolist()
        column = inside.shape[2] > 1 and a[1] != b[1]
        said = [f"({x[0]}, {x[1]})" if column else str(x[0]) for x in (a, b)]
        place, rest = [], int(where[one])
        for d in sorted(range(len(self.shape)), key=lambda d: -self.strides[d]):
            i, rest = divmod(rest, self.strides[d]) if self.shape[d] > 1 else (0, rest)
            place.append((d, i))
        element = ", ".join(str(i) for _, i in sorted(place))
        what = "elements (row, column)" if column else "rows"
        unit = "cluster" if m.launch.checked.cluster > 1 else "CTA"
        return fault(m, "R402", f"{what} {said[0]} and {said[1]} of a tile store different values to one element, `{self.name}[{element}]`, in {unit} {int(m.clusters[lane])}: either may stay",
                     actor.span, "each element gets one value: indices that differ for all rows, a mask that leaves one of them, or add=True for the sum")  # fmt: skip

    def _offsets(self, indices: list[Any], strides: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        offset: Any = torch.zeros((1, 1, 1), dtype=torch.int64, device=self.t.device)
        inside: Any = torch.ones((1, 1, 1), dtype=torch.bool, device=self.t.device)
        for i, stride, size in zip(indices, strides, self.shape):
            if isinstance(i, np.ndarray):
                i = torch.from_numpy(i).to(self.t.device).reshape(-1, 1, 1)
            offset = offset + (i.to(torch.int64) if isinstance(i, torch.Tensor) else int(i)) * stride
            inside = inside & (i >= 0) & (i < size)
        offset, inside = torch.broadcast_tensors(offset, inside)
        return offset, inside

    def _mark_elements(self, m: Machine, actor: Actor, indices: list[Any], inside: torch.Tensor, mode: str) -> None:
        shadow = self.shadow
        if shadow is None:
            return
        lanes = len(m.clusters)
        offset, _ = self._offsets(indices, shadow.strides)
        shape = (lanes, *inside.shape[1:])
        inside = inside.expand(shape)
        where = offset.expand(shape)[inside]
        lane = torch.arange(lanes, device=where.device).reshape(-1, 1, 1).expand(shape)[inside]
        access = shadow.enter(m, actor, mode, "generic", (actor.worker, actor.clock.known[actor.worker]))
        shadow.elements(m, actor, access, where, lane)

    # ---- single elements
    def element(self, m: Machine, actor: Actor, indices: list[Any]) -> Any:
        """A scalar for each lane. Raises CuirError M402 outside of the tensor."""
        self._require_inside(m, actor, indices)
        where: Any = sum(i * s for i, s in zip(indices, self.strides))
        if self.shadow is not None:
            tiles = [torch.full((1, 1, 1), i, device=self.t.device) if isinstance(i, int) else i for i in indices]
            self._mark_elements(m, actor, tiles, torch.ones((1, 1, 1), dtype=torch.bool, device=self.t.device), "read")
        if isinstance(where, np.ndarray):
            taken = self.flat[torch.from_numpy(where).to(self.t.device)].cpu().numpy()
            return taken.astype(np.int64) if taken.dtype == np.int32 else taken
        return self.flat[where].item()

    def set_element(self, m: Machine, actor: Actor, indices: list[Any], value: Any, add: bool) -> None:
        """Writes a scalar to the element at scalar indices. Raises CuirError M402 outside of the tensor."""
        self._require_inside(m, actor, indices)
        if isinstance(value, np.ndarray):
            value = torch.from_numpy(value).to(self.t.device).to(self.held).reshape(-1, 1, 1)
        self.scatter(m, actor, indices, value, None, add)

    def _require_inside(self, m: Machine, actor: Actor, indices: list[Any]) -> None:
        for d, (i, size) in enumerate(zip(indices, self.shape)):
            low, high = (int(i.min()), int(i.max())) if isinstance(i, np.ndarray) else (i, i)
            if low < 0 or high >= size:
                bad = low if low < 0 else high
                raise fault(m, "M402", f"{actor.label} reaches for an element outside of `{self.name}`: index {bad} in dim {d} of length {size}", actor.span,
                            "guard it by an if; a gather with index tiles reads 0 outside, a box too", [(f"`{self.name}` is declared here", self.param.span)])  # fmt: skip

    def stored(self) -> torch.dtype:
        return STORED[self.param.dtype]


class BoxRef(State):
    """A box of a tensor: for each dim of the tensor where it starts (a number, or one for each lane) and how long it is (1 for a dropped dim)."""

    def __init__(self, tensor: TensorArg, starts: tuple[Any, ...], sizes: tuple[int, ...], text: str):
        self.tensor, self.starts, self.sizes, self.text = tensor, starts, sizes, text

    def inside(self) -> bool:
        return all(
            (s >= 0).all() and (s + n <= dim).all() if isinstance(s, np.ndarray) else 0 <= s <= dim - n
            for s, n, dim in zip(self.starts, self.sizes, self.tensor.shape)
        )

    def pieces(self, strides: tuple[int, ...]) -> Iterator[tuple[slice, tuple[slice, ...], Any]]:
        """The parts inside of the tensor: lanes that are clipped alike, the slice of each dim of the box, and the flat offset of each lane."""
        low, high = [], []
        for s, n, dim in zip(self.starts, self.sizes, self.tensor.shape):
            low.append(np.maximum(0, -s) if isinstance(s, np.ndarray) else max(0, -s))
            high.append(np.minimum(n, dim - s) if isinstance(s, np.ndarray) else min(n, dim - s))
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
        """Do the boxes of two lanes share an element of the tensor?"""
        if lanes == 1:
            return False
        shared = ~np.eye(lanes, dtype=bool)
        for s, n, dim in zip(self.starts, self.sizes, self.tensor.shape):
            low = np.broadcast_to(np.clip(s, 0, dim), lanes)
            high = np.broadcast_to(np.clip(np.add(s, n), 0, dim), lanes)
            shared &= np.maximum(low[:, None], low[None]) < np.minimum(high[:, None], high[None])
            if not shared.any():
                return False
        return True


def _region(flat: torch.Tensor, strides: tuple[int, ...], part: tuple[slice, ...], offset: int) -> torch.Tensor:
    return torch.as_strided(flat, [p.stop - p.start for p in part], strides, flat.storage_offset() + offset)


def _assign(region: torch.Tensor, chunk: torch.Tensor) -> None:
    chunk.copy_(region)


def _deliver(region: torch.Tensor, chunk: torch.Tensor) -> None:
    region.copy_(chunk)


def _each(flat: torch.Tensor, strides: tuple[int, ...], part: tuple[slice, ...], offsets: Any, chunk: torch.Tensor, move: Any) -> None:
    """Moves between the boxes of all lanes at `offsets` and `chunk` [lanes, ...]: in one go if the offsets are equally spaced."""
    if not isinstance(offsets, np.ndarray):
        move(_region(flat, strides, part, int(offsets)), chunk)
        return
    step = int(offsets[1] - offsets[0]) if len(offsets) > 1 else 0
    if step >= 0 and (np.diff(offsets) == step).all():
        shape = (len(offsets), *(p.stop - p.start for p in part))
        move(torch.as_strided(flat, shape, (step, *strides), flat.storage_offset() + int(offsets[0])), chunk)
        return
    for lane, offset in enumerate(offsets):
        move(_region(flat, strides, part, int(offset)), chunk[lane])
