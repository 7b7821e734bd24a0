"""The loader by PyCUDA, on PyCUDA's context or torch's.

pycuda.compiler compiles kernels, pycuda.driver loads and launches them.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Protocol

import numpy as np
import torch

from ..lowering import Cuda
from ..lowering.cuda.writer import symbol
from ..text.diagnostics import CuirError
from .argument_buffer import ArgumentLayout, Arguments
from .driver_api import count_resident, driver, get_first_offset, load_function, make_driver_error, relax_capture, require_success
from .loader import PYCUDA, LoadedKernel
from .nvcc import FLAGS, Compiled, compile_cuda, find_nvcc, include_dir, make_compiler_error, target

INSTALL = "pip install cubridge[pycuda], on a machine with a C++ compiler, nvcc and CUDA's headers: PyCUDA is built from its sources"
MISSING_LIBRARY = re.compile(r"(lib[\w.+-]+\.so[.\d]*): cannot open shared object file")


# ---- the package
@functools.cache
def import_pycuda() -> ModuleType:
    """Import and initialise pycuda.driver.

    Raises CuirError U510 if PyCUDA is not there or cannot be loaded, U501 without a GPU.
    """
    try:
        drv = _import_driver()
    except ModuleNotFoundError as error:
        raise CuirError.of("U510", f"the loader `{PYCUDA}` needs the package PyCUDA: {error}", hint=INSTALL) from None
    except ImportError as error:
        raise CuirError.of(
            "U510",
            f"PyCUDA is installed and cannot be loaded: {error}",
            hint="it links CUDA's driver (libcuda.so.1) and the libraries of the toolkit it was built with; "
            "put their folders into LD_LIBRARY_PATH, or build it again",
        ) from None
    try:
        drv.init()
    except drv.Error as error:
        raise CuirError.of(
            "U501", f"PyCUDA finds no GPU: {error}", hint="run the program in the interpreter: cuir.run(checked, arguments)"
        ) from None
    return drv


def _import_driver() -> ModuleType:
    """Import pycuda.driver, loading CUDA libraries that the system does not find.

    A library that it links is then loaded from the folders of torch's packages and nvcc.
    """
    tried: set[str] = set()
    while True:
        try:
            import pycuda.driver

            return pycuda.driver
        except ImportError as error:
            missing = MISSING_LIBRARY.search(str(error))
            path = _find_library(missing[1]) if missing and missing[1] not in tried else None
            if missing is None or path is None:
                raise
            tried.add(missing[1])
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


def _find_library(name: str) -> Path | None:
    folders: list[Path] = []
    spec = importlib.util.find_spec("nvidia")  # of the packages that torch brings along
    for base in spec.submodule_search_locations or () if spec else ():
        folders += sorted(Path(base).glob("*/lib"))
    with suppress(CuirError):
        folders.append(Path(find_nvcc()).resolve().parent.parent / "lib64")
    return next((folder / name for folder in folders if (folder / name).is_file()), None)


# ---- compiling
def compile_with_pycuda(cuda: Cuda) -> Compiled:
    """Compile a lowered kernel by pycuda.compiler, with the flags and the cache of the default loader.

    Raises CuirError as `compile_cuda` does, and what `import_pycuda` raises. A cluster's size is a part of the text,
    since PyCUDA's launches have no such option.
    """
    import_pycuda()
    return compile_cuda(cuda.with_cluster_dims(), _run_compiler, "pycuda")


def _run_compiler(cuda: Cuda, nvcc: str) -> tuple[bytes, str]:
    from pycuda.compiler import compile as compile_source

    form, arch, codes = target(cuda.arch)
    with warnings.catch_warnings(record=True) as caught:  # PyCUDA passes on the output of nvcc and ptxas as warnings
        warnings.simplefilter("always")
        try:
            cubin = compile_source(
                cuda.source,
                nvcc,
                list(FLAGS),
                no_extern_c=True,
                arch=arch,
                code=codes.removeprefix("-code="),
                cache_dir=False,
                include_dirs=[include_dir()],
                target=form,
            )
        except import_pycuda().CompileError as error:
            raise make_compiler_error(cuda, (error.stdout or "") + (error.stderr or "")) from None
    return cubin, "\n".join(str(w.message) for w in caught)


# ---- contexts
class OwnStream(Protocol):
    """A `pycuda.driver.Stream`."""

    handle: int


class OwnDevice(Protocol):
    """A `pycuda.driver.Device`."""

    def compute_capability(self) -> tuple[int, int]: ...


class OwnContext(Protocol):
    """A `pycuda.driver.Context`."""

    handle: int

    def push(self) -> None: ...

    def pop(self) -> None: ...


@dataclass(frozen=True)
class Context:
    """A context of PyCUDA. index: of its device; capability: of that."""

    context: OwnContext
    handle: int
    index: int
    capability: tuple[int, int]

    @contextmanager
    def activate(self) -> Iterator[None]:
        self.context.push()
        try:
            yield
        finally:
            self.context.pop()


def _describe(context: OwnContext, device: OwnDevice) -> Context:
    drv = import_pycuda()
    index = next(i for i in range(drv.Device.count()) if drv.Device(i) == device)
    return Context(context, int(context.handle), index, device.compute_capability())


@functools.cache
def retain_primary_context(index: int) -> Context:
    """Retain the primary context of a device, in which torch works."""
    device = import_pycuda().Device(index)
    return _describe(device.retain_primary_context(), device)


def get_current_context() -> Context | None:
    """Return the context that PyCUDA has made current in this thread, if any."""
    context = import_pycuda().Context.get_current()
    if context is None:
        return None
    context.push()  # others, torch among them, may have made another one current without PyCUDA
    try:
        return _describe(context, context.get_device())
    finally:
        context.pop()


# ---- launching
@dataclass(frozen=True)
class PyCudaStart:
    """A launch as `pycuda.driver.Function` takes it.

    stream: PyCUDA's; outer: torch's stream that it stands in for, if any.
    """

    grid: tuple[int, int, int]
    arguments: np.void
    stream: OwnStream | None
    outer: int


class PyCudaFunction(LoadedKernel[PyCudaStart]):
    """A `pycuda.driver.Function` in one context."""

    def __init__(self, compiled: Compiled, layout: ArgumentLayout, context: Context):
        self.cuda, self.layout, self.context = compiled.cuda, layout, context
        self.block = (self.cuda.threads, 1, 1)
        self.streams: dict[int, OwnStream] = {}  # PyCUDA's, by the handle of the stream that they stand in for
        drv, name = import_pycuda(), symbol(self.cuda.name)
        with self.activate(), self._raising():
            self.module = drv.module_from_buffer(compiled.cubin)
            self.function = self.module.get_function(name)
            self.function.set_attribute(drv.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES, self.cuda.shared_bytes)
            self.resident, self.first_offset = self._examine_copy(compiled.cubin, name)

    def _examine_copy(self, cubin: bytes, name: str) -> tuple[int, int]:
        """Get the number of resident CTAs and the offset of the first parameter from a copy of the module.

        PyCUDA gives neither, and no driver handle.
        """
        cu = driver()
        module = require_success(self.cuda, cu.cuModuleLoadData(cubin))
        try:
            function = load_function(self.cuda, module, name)
            return count_resident(self.cuda, function), get_first_offset(self.cuda, function)
        finally:
            require_success(self.cuda, cu.cuModuleUnload(module))

    @contextmanager
    def activate(self) -> Iterator[None]:
        with self.context.activate(), relax_capture(self.cuda):
            yield

    def enter(self) -> bool:
        cu = driver()
        new = int(require_success(self.cuda, cu.cuCtxGetCurrent())) == 0
        if new:
            require_success(self.cuda, cu.cuCtxSetCurrent(cu.CUcontext(self.context.handle)))
        return new

    def prepare(self, grid: int, stream: int, arguments: Arguments) -> PyCudaStart:
        """Make a launch on torch's stream of this handle.

        PyCUDA can launch on its own streams alone, so one of these waits for torch's, and torch's for it.
        """
        if stream and stream not in self.streams:
            with self.activate(), self._raising():
                self.streams[stream] = import_pycuda().Stream(1)  # one that does not wait for the default stream
        return PyCudaStart((grid, 1, 1), np.void(arguments.as_bytes(self.first_offset)), self.streams.get(stream), stream)

    def prepare_own(self, grid: int, stream: OwnStream | None, arguments: Arguments) -> PyCudaStart:
        """Make a launch on a stream of PyCUDA's, or on the default stream."""
        return PyCudaStart((grid, 1, 1), np.void(arguments.as_bytes(self.first_offset)), stream, 0)

    def start(self, launch: PyCudaStart) -> None:
        with self.context.activate(), self._raising():
            if not launch.outer:
                self._launch(launch)
                return
            assert launch.stream is not None  # it stands in for torch's
            inner, outer = (torch.cuda.ExternalStream(h, device=self.context.index) for h in (launch.stream.handle, launch.outer))
            inner.wait_stream(outer)
            self._launch(launch)
            outer.wait_stream(inner)

    def _launch(self, launch: PyCudaStart) -> None:
        self.function(launch.arguments, grid=launch.grid, block=self.block, shared=self.cuda.shared_bytes, stream=launch.stream)

    @contextmanager
    def _raising(self) -> Iterator[None]:
        """Turn PyCUDA's errors into those of the default loader."""
        try:
            yield
        except import_pycuda().Error as error:
            raise make_driver_error(self.cuda, str(error)) from error
