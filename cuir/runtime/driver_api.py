"""The CUDA driver API through cuda-bindings, with the calls that every loader needs.

Those of memory, capture and occupancy.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any, Protocol, SupportsInt, cast

from ..lowering import Cuda
from ..text.diagnostics import CuirError

LIBRARY = "libcuda.so.1"
INVALID_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT


class LaunchConfig(Protocol):
    """A `CUlaunchConfig` of cuda-bindings."""

    def getPtr(self) -> SupportsInt: ...  # noqa: N802 - its name there


def driver() -> ModuleType:
    """Import the driver API.

    Raises CuirError U505 if cuda-bindings is not installed.
    """
    try:
        from cuda.bindings import driver as cu
    except ImportError:
        raise CuirError.of("U505", "running a kernel needs the package cuda-bindings", hint="pip install cubridge[gpu]") from None
    return cu


@cache
def direct(name: str, arguments: int) -> Callable[..., int]:
    """Look up a driver function that takes this number of addresses.

    Calls of it avoid the objects that cuda-bindings makes for each call.
    """
    function = getattr(ctypes.CDLL(LIBRARY), name)
    function.argtypes = [ctypes.c_void_p] * arguments
    return cast(Callable[..., int], function)


def make_driver_error(cuda: Cuda, reason: str) -> CuirError:
    """Make the error of a kernel that the driver does not load or launch."""
    return CuirError.of("L011", f"the CUDA driver refuses `{cuda.name}`: {reason}", cuda.checked.origin.span)


def require_success(cuda: Cuda, result: tuple[Any, ...]) -> Any:
    """Return the value of a driver call of cuda-bindings.

    Raises CuirError L011 with the name of the driver's error.
    """
    if int(result[0]) != 0:
        name = driver().cuGetErrorName(result[0])[1]
        raise make_driver_error(cuda, name.decode() if isinstance(name, bytes) else str(result[0]))
    return result[1] if len(result) > 1 else None


@contextmanager
def relax_capture(cuda: Cuda) -> Iterator[None]:
    """Let this thread load and allocate although its stream is captured into a CUDA graph."""
    cu = driver()
    mode = require_success(cuda, cu.cuThreadExchangeStreamCaptureMode(cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    try:
        yield
    finally:
        require_success(cuda, cu.cuThreadExchangeStreamCaptureMode(mode))


def allocate_zeros(cuda: Cuda, size: int) -> int:
    """Allocate memory in the current context that is zero for every stream; return its address.

    It lives as long as the context.
    """
    cu = driver()
    address = require_success(cuda, cu.cuMemAlloc(size))
    stream = require_success(cuda, cu.cuStreamCreate(cu.CUstream_flags.CU_STREAM_NON_BLOCKING))
    require_success(cuda, cu.cuMemsetD8Async(address, 0, size, stream))
    require_success(cuda, cu.cuStreamSynchronize(stream))
    require_success(cuda, cu.cuStreamDestroy(stream))
    return int(address)


def load_function(cuda: Cuda, module: object, symbol: str) -> Any:
    """Get the kernel of a loaded module, allowed the dynamic shared memory that it takes."""
    cu = driver()
    function = require_success(cuda, cu.cuModuleGetFunction(module, symbol.encode()))
    limit = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    require_success(cuda, cu.cuFuncSetAttribute(function, limit, cuda.shared_bytes))
    return function


def get_first_offset(cuda: Cuda, function: object) -> int:
    """Get the offset of a kernel's first parameter in its parameter space.

    It is not 0 where a parameter is aligned to more than that space begins at, as tensor maps are. A launch with one
    buffer includes these bytes.
    """
    return int(require_success(cuda, driver().cuFuncGetParamInfo(function, 0)))


def make_config(cuda: Cuda, grid: int, stream: int) -> LaunchConfig:
    """Describe a launch of `grid` CTAs as cuLaunchKernelEx takes it."""
    cu = driver()
    config, attribute = cu.CUlaunchConfig(), cu.CUlaunchAttribute()
    config.gridDimX, config.blockDimX = grid, cuda.threads
    config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1
    config.sharedMemBytes, config.hStream = cuda.shared_bytes, stream
    if cuda.cluster > 1:
        attribute.id = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z = cuda.cluster, 1, 1
        config.attrs, config.numAttrs = [attribute], 1
    return cast(LaunchConfig, config)


def count_resident(cuda: Cuda, function: object) -> int:
    """Count the CTAs, or clusters, that the current device holds at a time.

    A cluster lies in one group of multiprocessors, so their number alone does not determine it.
    """
    cu = driver()
    if cuda.cluster > 1:
        return int(require_success(cuda, cu.cuOccupancyMaxActiveClusters(function, make_config(cuda, cuda.cluster, 0))))
    each = require_success(cuda, cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, cuda.threads, cuda.shared_bytes))
    kind = cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
    return int(each) * int(require_success(cuda, cu.cuDeviceGetAttribute(kind, require_success(cuda, cu.cuCtxGetDevice()))))
