"""Tensors in device memory: boxes, gathers, scatters and elements of a batch, and who wrote which element.

A tensor that the kernel writes has a shadow: for each element the number of its last write, so that accesses of different workers or CTAs that nothing
orders are found. Additions commute with each other.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..checked import TensorParam
from .faults import fault
from .races import Actor, Event
from .state import State
from .values import HELD, STORED

if TYPE_CHECKING:
    from .machine import Machine


@dataclass
class Access:
    """One access of a batch to a tensor; element shadows hold `first + lane`."""

    first: int
    clusters: np.ndarray
    worker: int
    label: str
    what: str
    span: Any
    done: Event | None
    mode: str


class Shadow:
    """Numbers of the last accesses of one kind (writes, or reads) to each element of a tensor; 0: none."""

    def __init__(self, shape: tuple[int, ...], device: torch.device):
        size = int(np.prod(shape, dtype=np.int64))
        self.flat = torch.zeros(size, dtype=torch.int32, device=device)
        self.strides = tuple(int(np.prod(shape[i + 1 :], dtype=np.int64)) for i in range(len(shape)))
        self.log: list[Access] = []
        self.firsts: list[int] = []
        self.next = 1

    def enter(self, m: Machine, actor: Actor, mode: str, done: Event | None) -> Access:
        access = Access(self.next, m.clusters, actor.worker, actor.label, actor.what, actor.span, done, mode)
        self.log.append(access)
        self.firsts.append(self.next)
        self.next += len(m.clusters)
        return access

    def find(self, number: int) -> tuple[Access, int]:
        access = self.log[bisect.bisect_right(self.firsts, number) - 1]
        return access, int(access.clusters[number - access.first])


class TensorArg:
    """A tensor argument, with what the machine needs to reach it: shared by all batches of a launch."""

    def __init__(self, param: TensorParam, t: torch.Tensor, is_read: bool):
        self.param, self.name, self.t = param, param.name, t
        self.shape = tuple(int(n) for n in t.shape)
        self.strides = tuple(int(s) for s in t.stride())
        extent = 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides)) if t.numel() else 0
        self.flat = torch.as_strided(t, (extent,), (1,), t.storage_offset())
        self.held = HELD[param.dtype]
        self.writes = Shadow(self.shape, t.device) if param.written else None
        self.reads = Shadow(self.shape, t.device) if param.written and is_read else None

    # ---- accesses against the shadow
    def check(self, m: Machine, actor: Actor, mode: str, seen: torch.Tensor, shadow: Shadow, lane_numbers: Any) -> None:
        """`seen`: shadow numbers under the access (any shape); `lane_numbers`: the cluster of each, broadcastable. Raises CuirError R402."""
        if not m.launch.detect or not bool(seen.any()):
            return
        clusters = torch.as_tensor(lane_numbers, device=seen.device).expand(seen.shape)
        pairs = torch.stack((seen.reshape(-1).to(torch.int64), clusters.reshape(-1).to(torch.int64)))
        for number, cluster in torch.unique(pairs[:, pairs[0] != 0], dim=1).T.tolist():
            old, owner = shadow.find(number)
            if mode == "add" and old.mode == "add":
                continue
            same = owner == cluster
            if same and old.done is not None and actor.clock.has(old.done):
                continue
            whose = "" if same else f" of another {'cluster' if m.launch.checked.cluster > 1 else 'CTA'} ({owner})"
            hint = (
                "nothing orders CTAs of a launch: each element belongs to one of them, or all add=True"
                if not same
                else "a bulk store is over when the kernel ends"
                if old.done is None
                else "a barrier must lie between the two"
            )
            raise fault(m, "R402", f"the {mode} of `{self.name}` by {actor.label} is not ordered after the {old.mode} by {old.label}{whose}", actor.span, hint,
                        [(f"{old.what} here", old.span)])  # fmt: skip

    def _overlapping_lanes(self, m: Machine, actor: Actor) -> Exception:
        return fault(m, "R402", f"several CTAs write the same elements of `{self.name}` here", actor.span,
                     "nothing orders CTAs of a launch: each element belongs to one of them, or all add=True")  # fmt: skip

    # ---- boxes: an access is entered when it is issued, data move when it is done
    def enter_read(self, m: Machine, actor: Actor, box: BoxRef, done: Event | None) -> Access | None:
        """Checks a read against the writes before it. `done`: None while an engine may still do it. Gives what was entered, if anything."""
        return None if self.writes is None else self._mark(m, actor, box, "read", done, self.reads)

    def enter_write(self, m: Machine, actor: Actor, box: BoxRef, add: bool, done: Event | None) -> Access | None:
        """Checks a write against the accesses before it."""
        return self._mark(m, actor, box, "add" if add else "write", done, self.writes)

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

    def _mark(self, m: Machine, actor: Actor, box: BoxRef, mode: str, done: Event | None, own: Shadow | None) -> Access | None:
        assert self.writes is not None
        if mode == "write" and m.launch.detect and box.lanes_overlap(len(m.clusters)):
            raise self._overlapping_lanes(m, actor)
        access = own.enter(m, actor, mode, done) if own is not None else None
        against = [self.writes] if mode == "read" or self.reads is None else [self.writes, self.reads]
        for lanes, part, offsets in box.pieces(self.writes.strides):
            chosen = np.arange(len(m.clusters))[lanes]
            for lane, offset in zip(chosen, np.broadcast_to(offsets, len(chosen))):
                for shadow in against:
                    self.check(m, actor, mode, _region(shadow.flat, shadow.strides, part, int(offset)), shadow, int(m.clusters[lane]))
                if own is not None and access is not None:
                    _region(own.flat, own.strides, part, int(offset)).fill_(access.first + int(lane))
        return access

    # ---- gathers and scatters
    def gather(self, m: Machine, actor: Actor, indices: list[Any]) -> torch.Tensor:
        """[lanes or 1, R, C] of index tiles and scalars, one for each dim; outside of the tensor 0."""
        offset, inside = self._offsets(indices, self.strides)
        if not self.t.numel():
            return torch.zeros(offset.shape, dtype=self.held, device=self.t.device)
        taken = self.flat[torch.where(inside, offset, 0)].to(self.held)
        if self.writes is not None:
            self._mark_elements(m, actor, indices, inside, "read", self.reads)
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
        self._mark_elements(m, actor, indices, inside, "add" if add else "write", self.writes)
        where = offset.expand(shape)[inside]
        data = torch.as_tensor(values, dtype=self.held, device=self.t.device).expand(shape)[inside]
        self.flat.index_put_((where,), data.to(self.flat.dtype), accumulate=add)

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

    def _mark_elements(self, m: Machine, actor: Actor, indices: list[Any], inside: torch.Tensor, mode: str, own: Shadow | None) -> None:
        assert self.writes is not None
        lanes = len(m.clusters)
        offset, _ = self._offsets(indices, self.writes.strides)
        shape = (lanes, *inside.shape[1:])
        inside = inside.expand(shape)
        where = offset.expand(shape)[inside]
        lane = torch.arange(lanes, device=where.device).reshape(-1, 1, 1).expand(shape)[inside]
        clusters = torch.from_numpy(m.clusters).to(where.device)[lane]
        for shadow in [self.writes] if mode == "read" or self.reads is None else [self.writes, self.reads]:
            self.check(m, actor, mode, shadow.flat[where], shadow, clusters)
        if own is not None:
            numbers = (own.enter(m, actor, mode, (actor.worker, actor.clock.known[actor.worker])).first + lane).to(torch.int32)
            own.flat[where] = numbers
            if mode == "write" and m.launch.detect and not torch.equal(own.flat[where], numbers):
                raise self._overlapping_lanes(m, actor)

    # ---- single elements
    def element(self, m: Machine, actor: Actor, indices: list[Any]) -> Any:
        """A scalar for each lane. Raises CuirError M402 outside of the tensor."""
        self._require_inside(m, actor, indices)
        where: Any = sum(i * s for i, s in zip(indices, self.strides))
        if self.writes is not None:
            tiles = [torch.full((1, 1, 1), i, device=self.t.device) if isinstance(i, int) else i for i in indices]
            self._mark_elements(m, actor, tiles, torch.ones((1, 1, 1), dtype=torch.bool, device=self.t.device), "read", self.reads)
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
