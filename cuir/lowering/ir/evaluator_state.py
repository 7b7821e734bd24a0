"""The evaluator's workers: their waits, barriers, and the work items that they get.

A worker that waits yields a `Wait`, and goes on when that is over. Barriers are those of the hardware: a wait for an
mbarrier looks at the parity of its phase alone, and bytes of a copy may land before they are expected.

The evaluator's memory: arrays in shared memory, tensors, and the places in them.

A place reads as a tile [R, C] or a number, and a read is a copy. f16 and bf16 are held as float32, rounded to the
dtype.

Shared memory is poison until written: NaN in floats, a conspicuous number in i32. Arrays over the same bytes hold
values of their own, and a write through one poisons the others in those bytes, so that a read sees the last write or
poison, never an older value.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from xdsl.ir import Operation

from ...ops.meaning import Value
from ...ops.meaning.tiles import HELD_DTYPES, add_at, add_atomically, add_by_engine
from ...syntax.types import BOOL, DTYPES, I32, PANEL_BYTES, DType, SharedLayout
from ...text.phrases import count_noun

Frame = list[Any]  # the worker, and its value of each SSA value of the IR
Waiting = Generator["Wait", None, None]


class Fault(Exception):
    """An operation that no valid program does, or a deadlock.

    The IR is wrong, since its program was free of faults. `located`: the message names the operation.
    """

    located = False


class Wait(Protocol):
    """The condition for which a worker waits."""

    def over(self) -> bool: ...
    def __str__(self) -> str: ...


class Lanes(Protocol):
    """The lanes of a worker, whose accesses synchronisation orders (lane_order.py)."""

    def join(self, warps: bool) -> None: ...
    def fence(self) -> None: ...
    def give_columns(self) -> None: ...
    def take_columns(self) -> None: ...
    def check_met(self) -> None: ...


class Released(Protocol):
    """An access to shared memory that an arrival has released."""

    @property
    def op(self) -> Operation: ...
    @property
    def place(self) -> Place: ...


@dataclass
class Worker:
    """Worker `index` of a role, in the CTA of rank `rank` of its cluster.

    joint: the barrier of all workers of the CTA. running: of each CTA of the cluster, how many workers have not ended.
    lanes: the order of its lanes, if that is followed.
    """

    label: str
    rank: int
    index: int
    joint: NamedBarrier
    frame: Frame = field(repr=False)
    running: list[int]
    lanes: Lanes | None = None
    wait: Wait | None = None


class Mbarrier:
    """An mbarrier: phases that end when `count` arrivals and all expected bytes have come.

    `cluster`: the same one of each CTA, by rank.
    """

    def __init__(self, text: str, count: int, cluster: list[Mbarrier]):
        self.text, self.count, self.cluster = text, count, cluster
        self.phase, self.pending, self.bytes = 0, count, 0

    def arrive(self, expected: int = 0) -> None:
        """Count an arrival that announces `expected` bytes. Raises Fault if all have come."""
        if not self.pending:
            raise Fault(f"`{self.text}` has all {count_noun(self.count, 'arrival')} of phase {self.phase}, and another one comes")
        self.pending -= 1
        self.bytes += expected
        self._end()

    def land(self, nbytes: int) -> None:
        """Count bytes of a copy that have landed."""
        self.bytes -= nbytes
        self._end()

    def _end(self) -> None:
        if self.pending:
            return
        if self.bytes < 0:
            raise Fault(f"{-self.bytes} bytes more than are expected landed in phase {self.phase} of `{self.text}`")
        if not self.bytes:
            self.phase, self.pending = self.phase + 1, self.count

    def missing(self) -> str:
        """Return the arrivals and bytes that the present phase misses, as text."""
        return f"phase {self.phase} with {self.count - self.pending} of {count_noun(self.count, 'arrival')}, {count_noun(self.bytes, 'byte')} missing"


@dataclass
class PhaseWait:
    """A wait for the end of a phase of this parity."""

    bar: Mbarrier
    parity: int

    def over(self) -> bool:
        """Return whether the barrier is in a phase of the other parity."""
        return self.bar.phase % 2 != self.parity

    def __str__(self) -> str:
        return f"parity {self.parity} of `{self.bar.text}`, which is in {self.bar.missing()}"


class NamedBarrier:
    """A reusable barrier of `count` workers: some of them wait, others only arrive."""

    def __init__(self, text: str, count: int):
        self.text, self.count = text, count
        self.generation, self.arrived = 0, 0

    def arrive(self) -> int:
        """Arrive, and return the generation that the arrival belongs to."""
        generation = self.generation
        self.arrived += 1
        if self.arrived == self.count:
            self.generation, self.arrived = generation + 1, 0
        return generation


@dataclass
class Meeting:
    """A wait for a generation of a named barrier."""

    bar: NamedBarrier
    generation: int

    def over(self) -> bool:
        """Return whether the generation has ended."""
        return self.bar.generation > self.generation

    def __str__(self) -> str:
        return f"`{self.bar.text}`, where {self.bar.arrived} of {self.bar.count} have arrived"


class Units:
    """The work items of a launch.

    Static: cluster c of G gets c, c + G, ...; dynamic: the first to ask gets the next.
    """

    def __init__(self, clusters: int, dynamic: bool):
        self.clusters, self.dynamic = clusters, dynamic
        self.count = 0
        self.next_unit = 0  # dynamic ones
        self.units_by_cluster: list[list[int]] = [[] for _ in range(clusters)]


@dataclass(frozen=True)
class UnitsOfCluster:
    """The work items of one cluster, the same sequence for all its workers."""

    units: Units
    cluster: int

    def sequence(self) -> Iterator[int]:
        """Yield the work items that the cluster gets, for one of its workers."""
        units, drawn = self.units, self.units.units_by_cluster[self.cluster]
        if not units.dynamic:
            yield from range(self.cluster, units.count, units.clusters)
            return
        k = 0
        while True:
            if k == len(drawn):
                if units.next_unit >= units.count:
                    return
                drawn.append(units.next_unit)
                units.next_unit += 1
            yield drawn[k]
            k += 1


POISON: dict[DType, float | int | bool] = {d: math.nan if d.is_float else {I32: -0x21524111, BOOL: True}[d] for d in DTYPES.values()}


# ---- shared memory
class SharedArray:
    """An array in the shared memory of a CTA.

    `cluster`: the same array of each CTA of the cluster, by rank.
    """

    def __init__(self, name: str, dtype: DType, dims: Sequence[int], offset: int, cluster: list[SharedArray]):
        self.name, self.dtype, self.dims, self.cluster = name, dtype, tuple(dims), cluster
        self.layout = SharedLayout(name, dtype, self.dims, offset)
        self.values = torch.full(self.dims, POISON[dtype], dtype=HELD_DTYPES[dtype])
        self.over: list[SharedArray] = []  # arrays of this CTA that share bytes with it
        self.places: dict[object, SharedPlace] = {}
        self.released: list[Released] = []  # reads that no proxy fence orders before what an engine writes

    def place(self, starts: tuple[int, ...], sizes: tuple[int, ...], transposed: bool) -> SharedPlace:
        """Return a view; a size of -1 drops its dim.

        Raises: Fault outside of the array.
        """
        key = starts, sizes, transposed
        place = self.places.get(key)
        if place is None:
            place = self.places[key] = SharedPlace(self, starts, sizes, transposed)
        return place

    def whole(self) -> SharedPlace:
        """Return the view of the whole array."""
        return self.place((0,) * len(self.dims), self.dims, False)


def share_bytes(arrays: Sequence[SharedArray]) -> None:
    """Find the arrays of a CTA that overlap."""
    for a in arrays:
        first, last = a.layout.offset, a.layout.offset + a.layout.nbytes
        a.over = [b for b in arrays if b is not a and first < b.layout.offset + b.layout.nbytes and b.layout.offset < last]


class SharedPlace:
    """A view of a shared array: `values` is the part itself, not a copy."""

    def __init__(self, array: SharedArray, starts: tuple[int, ...], sizes: tuple[int, ...], transposed: bool):
        for d, (start, size, dim) in enumerate(zip(starts, sizes, array.dims, strict=True)):
            if not 0 <= start <= dim - abs(size):
                raise Fault(f"`{array.name}` has {dim} elements in dim {d}, and {abs(size)} from {start} on are reached for")
        self.array, self.key = array, (starts, sizes, transposed)
        index = self.index = tuple(s if size == -1 else slice(s, s + size) for s, size in zip(starts, sizes, strict=True))
        values = array.values[index]
        self.values = values.T if transposed else values
        lengths = [abs(size) for size in sizes]
        self.nbytes = math.prod(lengths[:-1]) * (-(-lengths[-1] * array.dtype.itemsize // 16) * 16)
        self.lost = [(b.values, mask, POISON[b.dtype]) for b in array.over if bool((mask := _find_shared_elements(array, index, b)).any())]

    def peer(self, rank: int) -> SharedPlace:
        """Return the same place in another CTA of the cluster."""
        return self.array.cluster[rank].place(*self.key)

    def overlaps(self, other: SharedPlace) -> bool:
        """Return whether a place of the same array, in this or another CTA, has elements of this one."""
        sides = zip(*self.key[:2], *other.key[:2], strict=True)
        return all(a < b + abs(size_b) and b < a + abs(size_a) for a, size_a, b, size_b in sides)

    def shares_bytes(self, other: SharedPlace) -> bool:
        """Return whether a place of another array has bytes of this one."""
        return bool(_find_shared_elements(self.array, self.index, other.array)[other.index].any())

    def read(self) -> Value:
        """Return a copy of the values."""
        return self.values.clone(memory_format=torch.contiguous_format) if self.values.dim() else self.values.item()

    def write(self, value: Value, mask: torch.Tensor | None = None, add: bool = False) -> None:
        """Write a value, and poison overlapping arrays in these bytes. Raises Fault for an addition."""
        if add:
            raise Fault("shared memory takes no atomic addition")
        if mask is not None:
            value = torch.where(mask, value, self.values)
        if isinstance(value, torch.Tensor):
            self.values.copy_(value.reshape(self.values.shape))
        else:
            self.values.fill_(value)
        for values, mask_of_bytes, poison in self.lost:
            values.masked_fill_(mask_of_bytes, poison)


def _compute_addresses(layout: SharedLayout) -> torch.Tensor:
    """Return the first byte of each element.

    The chunks of a panel's row are in order, since no view separates them.
    """
    stages = math.prod(layout.dims[:-2])
    stage = torch.arange(stages).reshape(-1, 1, 1) * (layout.rows * layout.row_bytes)
    row, col = torch.arange(layout.rows).reshape(-1, 1), torch.arange(layout.dims[-1])
    if layout.panelled:
        width = PANEL_BYTES // layout.dtype.itemsize
        offset = (col // width * layout.rows + row) * PANEL_BYTES + col % width * layout.dtype.itemsize
    else:
        offset = row * layout.row_bytes + col * layout.dtype.itemsize
    return (layout.offset + stage + offset).reshape(layout.dims)


def _find_shared_elements(array: SharedArray, index: tuple[int | slice, ...], overlapping: SharedArray) -> torch.Tensor:
    """Return a mask of the elements of another array that share a byte with these of `array`."""
    written = torch.zeros(max(x.layout.offset + x.layout.nbytes for x in (array, overlapping)), dtype=torch.bool)
    addresses, other_addresses = _compute_addresses(array.layout)[index].reshape(-1), _compute_addresses(overlapping.layout)
    for byte in range(array.dtype.itemsize):
        written[addresses + byte] = True
    return torch.stack([written[other_addresses + byte] for byte in range(overlapping.dtype.itemsize)]).any(0)


# ---- tensors
class TensorArgument:
    """A tensor in device memory: one for all CTAs."""

    def __init__(self, name: str, t: torch.Tensor, dtype: DType):
        self.name, self.dtype, self.storage_dtype = name, dtype, HELD_DTYPES[dtype]
        self.shape, self.strides = tuple(int(n) for n in t.shape), tuple(int(s) for s in t.stride())
        extent = 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)) if t.numel() else 0
        self.flat = torch.as_strided(t, (extent,), (1,), t.storage_offset())

    def whole(self) -> Box:
        """Return the box of the whole tensor."""
        rows = math.prod(self.shape[:-1])
        return Box(self, (0,) * len(self.shape), self.shape, (rows, self.shape[-1]))


class Box:
    """A box of a tensor, read and written as a tile of `shape`.

    Outside of the tensor it reads 0 and writes nothing.
    """

    def __init__(self, tensor: TensorArgument, starts: tuple[int, ...], sizes: tuple[int, ...], shape: tuple[int, int]):
        self.tensor, self.starts, self.sizes, self.shape = tensor, starts, sizes, shape
        low = [max(0, -s) for s in starts]
        high = [min(n, dim - s) for s, n, dim in zip(starts, sizes, tensor.shape, strict=True)]
        self.clipped = any(low) or high != list(sizes)
        self.part = tuple(map(slice, low, high))
        self.region: torch.Tensor | None = None
        if all(a < b for a, b in zip(low, high, strict=True)):
            offset = sum((s + a) * stride for s, a, stride in zip(starts, low, tensor.strides, strict=True))
            flat = tensor.flat
            lengths = [b - a for a, b in zip(low, high, strict=True)]
            self.region = torch.as_strided(flat, lengths, tensor.strides, flat.storage_offset() + offset)

    def read(self) -> torch.Tensor:
        """Return the box as a tile."""
        tile = (torch.zeros if self.clipped else torch.empty)(self.shape, dtype=self.tensor.storage_dtype)
        if self.region is not None:
            tile.view(self.sizes)[self.part].copy_(self.region)
        return tile

    def write(self, value: torch.Tensor, mask: torch.Tensor | None = None, add: bool = False) -> None:
        """Write a tile, or add it with one rounding."""
        if self.region is None:
            return
        chunk = value.reshape(self.sizes)[self.part]
        if add:
            # one rounding, as the engine's
            chunk = add_atomically(self.region.to(self.tensor.storage_dtype), chunk, self.region.dtype)
        if mask is not None:
            chunk_mask = mask.expand(self.shape).reshape(self.sizes)[self.part]
            chunk = torch.where(chunk_mask, chunk, self.region.to(self.tensor.storage_dtype))
        self.region.copy_(chunk)

    def reduce(self, value: torch.Tensor) -> None:
        """Add a tile as the copy engine does."""
        if self.region is not None:
            chunk = value.reshape(self.sizes)[self.part]
            self.region.copy_(add_by_engine(self.region.to(self.tensor.storage_dtype), chunk, self.region.dtype))


class Elements:
    """Elements of a tensor at indices, a tile or number for each dim.

    Outside of the tensor they read 0 and are not written.
    """

    def __init__(self, tensor: TensorArgument, indices: Sequence[Value]):
        self.tensor = tensor
        offset: Value = torch.zeros((1, 1), dtype=torch.int64)
        inside: Value = torch.ones((1, 1), dtype=torch.bool)
        for i, stride, size in zip(indices, tensor.strides, tensor.shape, strict=True):
            if isinstance(i, torch.Tensor):
                offset = offset + i.to(torch.int64) * stride
                inside = inside & (i >= 0) & (i < size)
            else:
                offset = offset + i * stride
                inside = inside if 0 <= i < size else inside & False
        self.offset, self.inside = torch.broadcast_tensors(offset, inside)

    def read(self) -> torch.Tensor:
        """Return the elements as a tile."""
        t = self.tensor
        if not t.flat.numel():
            return torch.zeros(self.offset.shape, dtype=t.storage_dtype)
        return t.flat[torch.where(self.inside, self.offset, 0)].to(t.storage_dtype).masked_fill_(~self.inside, 0)

    def write(self, value: Value, mask: torch.Tensor | None = None, add: bool = False) -> None:
        """Write a value to the elements, or add it."""
        t = self.tensor
        if not t.flat.numel():
            return
        shape = self.offset.shape
        if isinstance(value, torch.Tensor):
            shape = torch.Size(max(a, b) for a, b in zip(shape, value.shape, strict=True))
        enabled = (self.inside if mask is None else self.inside & mask).expand(shape)
        offsets = self.offset.expand(shape)[enabled]
        data = torch.as_tensor(value, dtype=t.storage_dtype).expand(shape)[enabled].to(t.flat.dtype)
        if add:
            add_at(t.flat, offsets, data)
        else:
            t.flat.index_put_((offsets,), data)


class Element:
    """A single element of a tensor.

    Raises: Fault outside of the tensor.
    """

    def __init__(self, tensor: TensorArgument, indices: Sequence[int]):
        for d, (i, size) in enumerate(zip(indices, tensor.shape, strict=True)):
            if not 0 <= i < size:
                raise Fault(f"`{tensor.name}` has no element {i} in dim {d}, whose length is {size}")
        self.tensor = tensor
        self.offset = sum(i * s for i, s in zip(indices, tensor.strides, strict=True))

    def read(self) -> Value:
        """Return the element."""
        return self.tensor.flat[self.offset].item()

    def write(self, value: Value, mask: torch.Tensor | None = None, add: bool = False) -> None:
        """Write the element, or add to it."""
        t = self.tensor
        enabled = mask is None or bool(mask)
        if enabled:
            data = torch.as_tensor(value, dtype=t.storage_dtype).reshape(1)
            old = t.flat[self.offset : self.offset + 1]
            old.copy_(add_atomically(old.to(t.storage_dtype), data, old.dtype) if add else data)


Place = SharedPlace | Box | Elements | Element
