"""Launching a compiled kernel on torch tensors: tensor maps, arguments, grid. Uses the CUDA driver through cuda-bindings. Owns no compiling."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from types import ModuleType
from typing import Any

import torch

from ..calls.aliasing import Place, apart, refuse_shared_memory
from ..calls.binding import Bound, bind
from ..calls.guards import LOW
from ..calls.index_ranges import require_index_ranges
from ..calls.requirements import COPY_ALIGNMENT
from ..calls.tile_count import tile_count
from ..checking.checked import Checked
from ..lowering import TensorMap
from ..lowering.cuda.writer import symbol
from ..ops.limits import TARGETS
from ..text.diagnostics import CuirError
from .nvcc import Compiled

PACKED_LIMIT = 4096  # launches whose arguments are kept packed
COUNTERS, COUNTER_BYTES = 1024, 64  # of one allocation; each in a sector of its own
MAP_BYTES, MAP_ALIGNMENT = 128, 64  # of a tensor map
CTYPES = {"f32": ctypes.c_float, "i32": ctypes.c_int32, "bool": ctypes.c_bool}


LIBRARY = "libcuda.so.1"
INVALID_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT


def driver() -> ModuleType:
    """The CUDA driver API. Raises CuirError U505 if cuda-bindings is not installed."""
    try:
        from cuda.bindings import driver as cu
    except ImportError:
        raise CuirError.of("U505", "running a kernel needs the package cuda-bindings", hint="pip install cubridge[gpu]") from None
    return cu


@cache
def direct(name: str, arguments: int) -> Any:
    """A function of the driver that takes so many addresses, called without the objects that cuda-bindings makes for each call."""
    function = getattr(ctypes.CDLL(LIBRARY), name)
    function.argtypes = [ctypes.c_void_p] * arguments
    return function


def capture_id(stream: int) -> int:
    """Of the CUDA graph that launches on a stream go into: no other capture has it. 0 if they go into none."""
    if not torch.cuda.is_current_stream_capturing():
        return 0
    return int(driver().cuStreamGetCaptureInfo(stream)[2])


def need_device(checked: Checked, device: torch.device | None) -> torch.device:
    """The GPU that the tensors lie on. Raises CuirError U501 (no GPU, or not one for this code) or U502 (tensors elsewhere)."""
    if not torch.cuda.is_available():
        raise CuirError.of(
            "U501",
            "a launch needs a GPU: torch.cuda.is_available() is False",
            hint="run the program in the interpreter: cuir.run(checked, arguments)",
        )
    if device is None or device.type != "cuda":
        raise CuirError.of("U502", f"tensors must be on a GPU, found {device}", checked.origin.span, "tensor.cuda()")
    major, minor = torch.cuda.get_device_capability(device)
    if not TARGETS[checked.arch].runs_on((major, minor)):
        raise CuirError.of(
            "U501", f"the kernel is for {checked.arch}, this device has compute capability {major}.{minor}", checked.origin.span
        )
    return device


@dataclass(frozen=True)
class Plan:
    """What launches of one signature share: `grid` CTAs (0: nothing to launch), how tensors lie, dims and scalars."""

    grid: int
    shapes: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]  # of each tensor: sizes and strides, in elements
    reaches: tuple[tuple[int, bool], ...]  # see `apart`
    maps: tuple[tuple[bytes, int | None], ...]  # tensor maps, and which tensor's address goes in: None for one without elements
    arrays: tuple[tuple[int, tuple[Any, ...]], ...]  # tensors whose elements the kernel reads itself: which, and its strides as C values
    numbers: tuple[Any, ...]  # scalars, then dims, as C values
    rest: Rest | None = None  # of launches that are given the addresses of some tensors alone

    def again(self, low: tuple[int, ...], always: tuple[int, ...], where: tuple[int, ...]) -> Plan:
        """For launches that are given the addresses of some tensors alone, see `Rest`."""
        return replace(self, rest=Rest(low, always, where))

    def whole(self, places: tuple[int, ...]) -> tuple[int, ...] | None:
        """The addresses of all tensors, in order of the signature, from those that a launch is given; None if these are not aligned as they must be."""
        return places if self.rest is None else self.rest.joined(places)


@dataclass(frozen=True)
class Rest:
    """What launches share that are given some of the addresses. low: bits that the first of them must have; always: the other addresses; where: of each tensor of
    the signature its place among those given and these."""

    low: tuple[int, ...]
    always: tuple[int, ...]
    where: tuple[int, ...]

    def joined(self, places: tuple[int, ...]) -> tuple[int, ...] | None:
        if any(place & LOW != low for place, low in zip(places, self.low)):
            return None
        every = places + self.always
        return tuple(every[i] for i in self.where)


@dataclass(frozen=True, slots=True)
class Packed:
    """A launch as the driver takes it: the arguments, and grid, stream and the like; immutable, so that threads may share them. `keep` owns what these point to."""

    pointers: int
    config: int
    keep: tuple[Any, ...]


class Launcher:
    """A compiled kernel on one device: module, function, counters of tiles, packed arguments.

    Safe under CUDA graph capture, from several threads, and on streams that overlap: each stream, and each captured launch, has a counter of its own.
    """

    def __init__(self, compiled: Compiled, device: torch.device):
        self.cu, self.compiled, self.device, self.index = driver(), compiled, device, device.index
        self.checked, self.cuda = compiled.cuda.checked, compiled.cuda
        self.symbol, self.counts = symbol(self.cuda.name), self.cuda.counter
        self.configs: dict[tuple[int, int], Any] = {}  # by grid and stream
        self.start, self.replace = direct("cuLaunchKernelEx", 4), direct("cuTensorMapReplaceAddress", 2)
        with torch.cuda.device(device), self._outside_of_capture():
            self.context = self._ok(self.cu.cuCtxGetCurrent())  # torch's
            self.module = self._ok(self.cu.cuModuleLoadData(compiled.cubin))
            self.function = self._ok(self.cu.cuModuleGetFunction(self.module, self.symbol.encode()))
            self.place = int(self.function)
            limit = self.cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._ok(self.cu.cuFuncSetAttribute(self.function, limit, self.cuda.shared_bytes))
            self.clusters = self._resident()
            self.nothing = self._zeros(256)  # stands for tensors without elements
        if self.clusters < 1:
            raise CuirError.of(
                "L011",
                "the kernel does not fit on this device",
                self.checked.origin.span,
                "use fewer stages, threads or registers, or smaller clusters",
            )
        self.counters: dict[int, int] = {}  # stream -> address
        self.free: list[int] = []  # counters not handed out
        self.packed: dict[tuple[Any, ...], Packed] = {}
        self.lock = threading.Lock()

    def _resident(self) -> int:
        """How many CTAs, or clusters, are on the device at a time. A cluster lies in one group of multiprocessors, so their number alone does not say."""
        cu, cuda = self.cu, self.cuda
        if cuda.cluster > 1:
            return int(self._ok(cu.cuOccupancyMaxActiveClusters(self.function, self._config(cuda.cluster, 0))))
        each = self._ok(cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(self.function, cuda.threads, cuda.shared_bytes))
        return int(torch.cuda.get_device_properties(self.device).multi_processor_count * each)

    def _config(self, grid: int, stream: int) -> Any:
        """A launch of `grid` CTAs, as the driver takes it."""
        cu, cuda = self.cu, self.cuda
        if (grid, stream) in self.configs:
            return self.configs[grid, stream]
        config, attribute = cu.CUlaunchConfig(), cu.CUlaunchAttribute()
        config.gridDimX, config.blockDimX = grid, cuda.threads
        config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1
        config.sharedMemBytes, config.hStream = cuda.shared_bytes, stream
        if cuda.cluster > 1:
            attribute.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z = cuda.cluster, 1, 1
            config.attrs, config.numAttrs = [attribute], 1
        return self.configs.setdefault((grid, stream), config)

    def _ok(self, result: tuple[Any, ...]) -> Any:
        if int(result[0]) != 0:
            name = self.cu.cuGetErrorName(result[0])[1]
            raise CuirError.of(
                "L011",
                f"the CUDA driver refuses `{self.cuda.name}`: {name.decode() if isinstance(name, bytes) else result[0]}",
                self.checked.origin.span,
            )
        return result[1] if len(result) > 1 else None

    @contextmanager
    def _outside_of_capture(self) -> Iterator[None]:
        """This thread may load and allocate although its stream is captured."""
        torch.empty(1, device=self.device)  # the context is torch's
        mode = self._ok(self.cu.cuThreadExchangeStreamCaptureMode(self.cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
        try:
            yield
        finally:
            self._ok(self.cu.cuThreadExchangeStreamCaptureMode(mode))

    def _zeros(self, size: int) -> int:
        """Address of new device memory, zero for every stream; lives as long as the context."""
        cu = self.cu
        address = self._ok(cu.cuMemAlloc(size))
        stream = self._ok(cu.cuStreamCreate(cu.CUstream_flags.CU_STREAM_NON_BLOCKING))
        self._ok(cu.cuMemsetD8Async(address, 0, size, stream))
        self._ok(cu.cuStreamSynchronize(stream))
        self._ok(cu.cuStreamDestroy(stream))
        return int(address)

    def _new_counter(self) -> int:
        with self.lock:
            if not self.free:
                with torch.cuda.device(self.device), self._outside_of_capture():
                    first = self._zeros(COUNTERS * COUNTER_BYTES)
                self.free = [first + i * COUNTER_BYTES for i in range(COUNTERS)]
            return self.free.pop()

    def plan(self, arguments: Mapping[str, Any], bound: Bound) -> Plan:
        """What a launch with checked arguments needs besides addresses and a stream."""
        self._entered()
        cuda = self.cuda
        scalars = {s: arguments[s] for s in cuda.scalars}
        require_index_ranges(self.checked, bound.dims, arguments)
        count = tile_count(self.checked, bound.dims, scalars)
        grid = cuda.cluster if count is None else min(max(count, 0), self.clusters) * cuda.cluster
        numbers = [CTYPES[p.dtype.name](scalars[p.name]) for p in self.checked.scalars]
        numbers += [ctypes.c_int32(bound.dims[d]) for d in cuda.dims]
        places = {t.name: Place.of(arguments[t.name]) for t in self.checked.tensors}
        refuse_shared_memory(self.checked.tensors, places)
        shapes = {name: (p.shape, p.strides) for name, p in places.items()}
        reaches = tuple((0 if 0 in places[t.name].shape else places[t.name].reach, t.written) for t in self.checked.tensors)
        order = {name: i for i, name in enumerate(places)}
        maps = tuple((self._encode(m, places[m.tensor]), None if 0 in places[m.tensor].shape else order[m.tensor]) for m in cuda.maps)
        scratch = {t.name for t in self.checked.tensors if t.scratch}  # whose strides the text knows
        arrays = tuple(
            (order[name], () if name in scratch else tuple(ctypes.c_int64(s) for s in places[name].strides[:-1])) for name in cuda.tensors
        )
        return Plan(grid, shapes, reaches, maps, arrays, tuple(numbers))

    def launch(self, plan: Plan, places: tuple[int, ...], captured: bool | None = None) -> bool:
        """One launch on torch's current stream, without synchronising. places: the tensors' addresses in order of the signature, or those that a plan with a
        rest is given: False, and nothing is done, if these are not aligned as its tensors were. captured: whether the stream is, where the caller has asked."""
        if not plan.grid:
            return plan.whole(places) is not None
        stream = torch._C._cuda_getCurrentRawStream(self.index)  # without the cost of a Stream object, as Triton does
        own = self.counts and (torch.cuda.is_current_stream_capturing() if captured is None else captured)
        key = (id(plan), stream, places)
        packed = None if own else self.packed.get(key)
        if packed is None:  # else its addresses were found to be aligned, as they are the same
            whole = plan.whole(places)
            if whole is None:
                return False
            if own:
                # replays may overlap with other launches, and with other graphs
                packed = self._pack(plan, whole, stream, self._new_counter())
            else:
                if len(self.packed) >= PACKED_LIMIT:
                    self.packed.clear()
                if self.counts and stream not in self.counters:
                    self.counters[stream] = self._new_counter()
                packed = self.packed[key] = self._pack(plan, whole, stream, self.counters.get(stream, 0))
        if torch._C._cuda_getDevice() == self.index:
            self._start(packed)
        else:
            with torch.cuda.device(self.device):
                self._start(packed)
        return True

    def _start(self, packed: Packed) -> None:
        while (status := self.start(packed.config, self.place, packed.pointers, None)) != 0:
            if status != INVALID_CONTEXT or not self._entered():
                self._ok((self.cu.CUresult(status),))

    def _entered(self) -> bool:
        """Gives torch's context to a thread that has not touched the device before. Whether it is one."""
        new = int(self._ok(self.cu.cuCtxGetCurrent())) == 0
        if new:
            self._ok(self.cu.cuCtxSetCurrent(self.context))
        return new

    def _pack(self, plan: Plan, places: tuple[int, ...], stream: int, counter: int) -> Packed:
        if not apart(plan.reaches, places):
            tensors = zip(self.checked.tensors, places, strict=True)
            refuse_shared_memory(self.checked.tensors, {t.name: Place(at, *plan.shapes[t.name], t.dtype.itemsize) for t, at in tensors})
        memory = (ctypes.c_uint8 * (MAP_BYTES * len(plan.maps) + MAP_ALIGNMENT))()
        at = (ctypes.addressof(memory) + MAP_ALIGNMENT - 1) // MAP_ALIGNMENT * MAP_ALIGNMENT
        addresses = []
        for encoded, tensor in plan.maps:
            ctypes.memmove(at, encoded, MAP_BYTES)
            while tensor is not None and (status := self.replace(at, places[tensor])) != 0:
                if status != INVALID_CONTEXT or not self._entered():
                    self._ok((self.cu.CUresult(status),))
            addresses.append(at)
            at += MAP_BYTES
        values: list[Any] = []
        for tensor, strides in plan.arrays:
            values.append(ctypes.c_uint64(places[tensor]))
            values += strides
        if self.cuda.counter:
            values.append(ctypes.c_uint64(counter))
        values += plan.numbers
        addresses += [ctypes.addressof(v) for v in values]
        pointers = (ctypes.c_void_p * len(addresses))(*addresses)
        config = self._config(plan.grid, stream)
        return Packed(ctypes.addressof(pointers), int(config.getPtr()), (pointers, plan, config, memory, *values))

    # ---- tensor maps
    def _encode(self, m: TensorMap, tensor: Place) -> bytes:
        """A tensor map, of an address that launches replace."""
        cu, kinds = self.cu, self.cu.CUtensorMapDataType
        dtype = next(p for p in self.checked.tensors if p.name == m.tensor).dtype
        kind = getattr(kinds, f"CU_TENSOR_MAP_DATA_TYPE_{dtype.torch.upper() if dtype.itemsize > 1 else 'UINT8'}")  # bytes are only moved
        sizes = [1 if 0 in tensor.shape else n for n in tensor.shape]
        strides = [COPY_ALIGNMENT if n == 1 else s * dtype.itemsize for n, s in zip(sizes[:-1], tensor.strides[:-1], strict=True)]
        rank = len(sizes)
        encoded = self._ok(cu.cuTensorMapEncodeTiled(
            kind, rank, self.nothing, [cu.cuuint64_t(n) for n in reversed(sizes)],
            [cu.cuuint64_t(s) for s in reversed(strides)], [cu.cuuint32_t(n) for n in reversed(m.sizes)], [cu.cuuint32_t(1)] * rank,
            cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE, cu.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B if m.swizzled else cu.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_NONE,
            cu.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B, cu.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE))  # fmt: skip
        return ctypes.string_at(encoded.getPtr(), MAP_BYTES)


def bound_arguments(checked: Checked, arguments: Mapping[str, Any]) -> Bound:
    """Checks a call's arguments against the kernel and its consts (see cuir.bind)."""
    return bind(checked.origin, arguments, dict(checked.consts))
