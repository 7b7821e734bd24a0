"""Launches of a compiled kernel on tensors: plans, tensor maps, grids, counters, packed arguments.

Loaders load and start the kernel.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from ..arguments.aliasing import Place, are_disjoint, refuse_shared_memory
from ..arguments.binding import Argument, Bound, bind
from ..arguments.guards import LOW
from ..arguments.index_ranges import require_index_ranges
from ..arguments.requirements import COPY_ALIGNMENT
from ..arguments.tile_count import count_tiles
from ..checking.checked import Checked
from ..lowering import TensorMap
from ..ops.limits import TARGETS
from ..text.diagnostics import CuirError
from .argument_buffer import MAP_BYTES, ArgumentLayout, Arguments, round_parameter
from .driver_api import INVALID_CONTEXT, allocate_zeros, direct, driver, require_success
from .launch_description import count_ctas
from .loader import DriverKernel, LoadedKernel
from .nvcc import Compiled

PACKED_LIMIT = 4096  # most launches in the cache of packed arguments
COUNTERS, COUNTER_BYTES = 1024, 64  # counters of one allocation; each in a separate sector


def get_capture_id(stream: int) -> int:
    """Return the id, unique to a capture, of the CUDA graph that a stream is captured into; 0 if none."""
    if not torch.cuda.is_current_stream_capturing():
        return 0
    return int(driver().cuStreamGetCaptureInfo(stream)[2])


def require_device(checked: Checked, device: torch.device | None) -> torch.device:
    """Return the GPU that the tensors lie on.

    Raises CuirError U501 (no GPU, or not one for this code) or U502 (tensors elsewhere).
    """
    if not torch.cuda.is_available():
        raise CuirError.of(
            "U501",
            "a launch needs a GPU: torch.cuda.is_available() is False",
            hint="run the program in the interpreter: cuir.run(checked, arguments)",
        )
    if device is None or device.type != "cuda":
        raise CuirError.of("U502", f"tensors must be on a GPU, found {device}", checked.origin.span, "tensor.cuda()")
    require_capability(checked, torch.cuda.get_device_capability(device))
    return device


def require_capability(checked: Checked, capability: tuple[int, int]) -> None:
    """Raise CuirError U501 for a device that does not run the kernel's code."""
    if not TARGETS[checked.arch].runs_on(capability):
        message = f"the kernel is for {checked.arch}, this device has compute capability {capability[0]}.{capability[1]}"
        raise CuirError.of("U501", message, checked.origin.span)


@dataclass(frozen=True)
class Plan:
    """The part of a launch that all launches of one signature share.

    `grid` CTAs (0: nothing to launch), layouts of tensors, dims and scalars.
    """

    grid: int
    shapes: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]  # of each tensor: sizes and strides, in elements
    reaches: tuple[tuple[int, bool], ...]  # see `are_disjoint`
    # tensor maps, and the index of the tensor whose address goes in: None for one without elements
    maps: tuple[tuple[bytes, int | None], ...]
    # tensors that the kernel accesses by address: index and outer strides
    arrays: tuple[tuple[int, tuple[int, ...]], ...]
    numbers: tuple[int | float | bool, ...]  # scalars, then dims
    rest: FixedAddresses | None = None  # for launches with the addresses of some tensors alone

    def make_replay(self, low: tuple[int, ...], always: tuple[int, ...], positions: tuple[int, ...]) -> Plan:
        """Return the plan for launches with the addresses of some tensors alone, see `FixedAddresses`."""
        return replace(self, rest=FixedAddresses(low, always, positions))

    def whole(self, places: tuple[int, ...]) -> tuple[int, ...] | None:
        """Return the addresses of all tensors, in order of the signature, from those of a launch.

        None if these are not aligned as they must be.
        """
        return places if self.rest is None else self.rest.join(places)


@dataclass(frozen=True)
class FixedAddresses:
    """The fixed part of launches that get only some of the addresses.

    low: bits that the first of them must have; always: the other addresses; positions: for each tensor of the signature
    its position among those of the launch followed by these.
    """

    low: tuple[int, ...]
    always: tuple[int, ...]
    positions: tuple[int, ...]

    def join(self, places: tuple[int, ...]) -> tuple[int, ...] | None:
        if any(place & LOW != low for place, low in zip(places, self.low)):
            return None
        every = places + self.always
        return tuple(every[i] for i in self.positions)


class Packed(NamedTuple):
    """A launch as a loader takes it, and its plan.

    The plan lives as long, since launches are cached by its id. Immutable, so that threads may share it.
    """

    launch: object
    plan: Plan


Load = Callable[[Compiled, ArgumentLayout, torch.device], LoadedKernel[Any]]


class Launcher:
    """A compiled kernel in one context: the loaded kernel, counters of tiles, packed arguments.

    Safe under CUDA graph capture, from several threads, and on streams that overlap: each stream, and each captured
    launch, has a separate counter.
    """

    def __init__(self, compiled: Compiled, device: torch.device, load: Load = DriverKernel):
        self.cu, self.device, self.index = driver(), device, device.index
        self.checked, self.cuda = compiled.cuda.checked, compiled.cuda
        self.layout, self.counts = ArgumentLayout(self.cuda), self.cuda.counter
        self.replace = direct("cuTensorMapReplaceAddress", 2)
        self.kernel = load(compiled, self.layout, device)
        self._start: Callable[[Any], None] = self.kernel.start
        with self.kernel.activate():
            self.placeholder = allocate_zeros(self.cuda, 256)  # stands for tensors without elements
        if self.kernel.resident < 1:
            raise CuirError.of(
                "L011",
                "the kernel does not fit on this device",
                self.checked.origin.span,
                "use fewer stages, threads or registers, or smaller clusters",
            )
        self.counters: dict[int, int] = {}  # stream -> address
        self.free: list[int] = []  # counters not handed out
        self.packed: dict[tuple[int, int, tuple[int, ...]], Packed] = {}
        self.lock = threading.Lock()

    def _new_counter(self) -> int:
        with self.lock:
            if not self.free:
                with self.kernel.activate():
                    first = allocate_zeros(self.cuda, COUNTERS * COUNTER_BYTES)
                self.free = [first + i * COUNTER_BYTES for i in range(COUNTERS)]
            return self.free.pop()

    def get_counter(self, stream: int | None) -> int:
        """Return the address of a stream's counter of tiles; 0 for a kernel that has none.

        Without a stream, that of a new one.
        """
        if not self.counts:
            return 0
        if stream is None:
            return self._new_counter()
        if stream not in self.counters:
            self.counters[stream] = self._new_counter()
        return self.counters[stream]

    def plan(self, arguments: Mapping[str, Any], bound: Bound) -> Plan:
        """Compute what a launch with checked arguments needs besides addresses and a stream."""
        self.kernel.enter()
        cuda = self.cuda
        scalars = {s: arguments[s] for s in cuda.scalars}
        require_index_ranges(self.checked, bound.dims, arguments)
        count = count_tiles(self.checked, bound.dims, scalars)
        grid = count_ctas(cuda, count, self.kernel.resident)
        numbers = [round_parameter(p.dtype.name, scalars[p.name]) for p in self.checked.scalars] + [bound.dims[d] for d in cuda.dims]
        places = {t.name: Place.of(arguments[t.name]) for t in self.checked.tensors}
        refuse_shared_memory(self.checked.tensors, places)
        shapes = {name: (p.shape, p.strides) for name, p in places.items()}
        reaches = tuple((0 if 0 in places[t.name].shape else places[t.name].reach, t.written) for t in self.checked.tensors)
        order = {name: i for i, name in enumerate(places)}
        maps = tuple((self._encode(m, places[m.tensor]), None if 0 in places[m.tensor].shape else order[m.tensor]) for m in cuda.maps)
        scratch = {t.name for t in self.checked.tensors if t.scratch}  # whose strides the text knows
        arrays = tuple((order[name], () if name in scratch else places[name].strides[:-1]) for name in cuda.tensors)
        return Plan(grid, shapes, reaches, maps, arrays, tuple(numbers))

    def launch(self, plan: Plan, places: tuple[int, ...], captured: bool | None = None) -> bool:
        """Launch once on torch's current stream, without synchronising.

        places: the tensors' addresses in order of the signature, or those that a plan with a `FixedAddresses` takes. Returns
        False, without a launch, if these are not aligned as its tensors were. captured: whether the stream is
        captured, if the caller knows.
        """
        if not plan.grid:
            return plan.whole(places) is not None
        stream = torch._C._cuda_getCurrentRawStream(self.index)  # without the cost of a Stream object, as Triton does
        private = self.counts and (torch.cuda.is_current_stream_capturing() if captured is None else captured)
        packed = None if private else self.packed.get((id(plan), stream, places))
        if packed is None:  # a cached launch has the same addresses, which are aligned
            packed = self.pack(plan, places, stream, private)
            if packed is None:
                return False
        if torch._C._cuda_getDevice() == self.index:
            self._start(packed.launch)
        else:
            with torch.cuda.device(self.device):
                self._start(packed.launch)
        return True

    def pack(self, plan: Plan, places: tuple[int, ...], stream: int, private: bool) -> Packed | None:
        """Pack the arguments of a launch on a stream; None for addresses that are not aligned as the plan's.

        private: with a new counter if it counts, and not cached, since replays of a captured launch may overlap with
        other launches, and with other graphs.
        """
        whole = plan.whole(places)
        if whole is None:
            return None
        if private:
            return self._pack(plan, whole, stream, self.get_counter(None))
        if len(self.packed) >= PACKED_LIMIT:
            self.packed.clear()
        packed = self.packed[id(plan), stream, places] = self._pack(plan, whole, stream, self.get_counter(stream))
        return packed

    def _pack(self, plan: Plan, places: tuple[int, ...], stream: int, counter: int) -> Packed:
        return Packed(self.kernel.prepare(plan.grid, stream, self.pack_arguments(plan, places, counter)), plan)

    def pack_arguments(self, plan: Plan, places: tuple[int, ...], counter: int) -> Arguments:
        """Pack the arguments of a launch with the addresses of all tensors, in order of the signature.

        counter: the address of an unsigned, zero.
        """
        if not are_disjoint(plan.reaches, places):
            tensors = zip(self.checked.tensors, places, strict=True)
            refuse_shared_memory(self.checked.tensors, {t.name: Place(at, *plan.shapes[t.name], t.dtype.itemsize) for t, at in tensors})
        values: list[int | float | bool] = []
        for tensor, strides in plan.arrays:
            values.append(places[tensor])
            values += strides
        if self.counts:
            values.append(counter)
        values += plan.numbers
        arguments = self.layout.pack([encoded for encoded, _ in plan.maps], values)
        for offset, (_, index) in zip(self.layout.offsets, plan.maps):
            while index is not None and (status := self.replace(arguments.address + offset, places[index])) != 0:
                if status != INVALID_CONTEXT or not self.kernel.enter():
                    require_success(self.cuda, (self.cu.CUresult(status),))
        return arguments

    # ---- tensor maps
    def _encode(self, m: TensorMap, tensor: Place) -> bytes:
        """Encode a tensor map with an address that launches replace."""
        cu, kinds = self.cu, self.cu.CUtensorMapDataType
        dtype = next(p for p in self.checked.tensors if p.name == m.tensor).dtype
        # elements of one byte are only moved
        kind = getattr(kinds, f"CU_TENSOR_MAP_DATA_TYPE_{dtype.torch.upper() if dtype.itemsize > 1 else 'UINT8'}")
        sizes = [1 if 0 in tensor.shape else n for n in tensor.shape]
        strides = [COPY_ALIGNMENT if n == 1 else s * dtype.itemsize for n, s in zip(sizes[:-1], tensor.strides[:-1], strict=True)]
        strides = strides or [COPY_ALIGNMENT]  # of one dim; unused, but the driver refuses an empty array
        rank = len(sizes)
        encoded = require_success(
            self.cuda,
            cu.cuTensorMapEncodeTiled(
                kind,
                rank,
                self.placeholder,
                [cu.cuuint64_t(n) for n in reversed(sizes)],
                [cu.cuuint64_t(s) for s in reversed(strides)],
                [cu.cuuint32_t(n) for n in reversed(m.sizes)],
                [cu.cuuint32_t(1)] * rank,
                cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
                cu.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B if m.swizzled else cu.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_NONE,
                cu.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                cu.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            ),
        )
        return ctypes.string_at(encoded.getPtr(), MAP_BYTES)


def bind_arguments(checked: Checked, arguments: Mapping[str, Argument]) -> Bound:
    """Check a call's arguments against the kernel and its consts (see cuir.bind)."""
    return bind(checked.origin, arguments, dict(checked.consts))
