"""Interface of loaders, which load a compiled kernel into a context of the CUDA driver and start it.

The default loader: the CUDA driver API through cuda-bindings, in torch's context.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Generic, NamedTuple, TypeVar

import torch

from ..lowering.cuda.writer import symbol
from ..text.diagnostics import CuirError
from .argument_buffer import ArgumentLayout, Arguments
from .driver_api import (
    INVALID_CONTEXT,
    LaunchConfig,
    count_resident,
    direct,
    driver,
    load_function,
    make_config,
    relax_capture,
    require_success,
)
from .nvcc import Compiled

DRIVER, PYCUDA = "driver", "pycuda"
LOADERS = (DRIVER, PYCUDA)
L = TypeVar("L")  # a launch as a loader takes it


class LoadedKernel(ABC, Generic[L]):
    """A kernel in one context.

    Loading, and every method but `enter`, takes place where the context is current (`activate`, `enter`). resident:
    CTAs, or clusters, that the device holds at a time.
    """

    resident: int

    @abstractmethod
    def activate(self) -> AbstractContextManager[None]:
        """Make the context current inside of a `with`, also for a thread whose stream is captured.

        The thread may load and allocate there.
        """

    @abstractmethod
    def enter(self) -> bool:
        """Make the context current in a thread that has none; return whether it had none."""

    @abstractmethod
    def prepare(self, grid: int, stream: int, arguments: Arguments) -> L:
        """Make a launch that `start` may start repeatedly, from several threads."""

    @abstractmethod
    def start(self, launch: L) -> None:
        """Launch without synchronising.

        Raises CuirError L011 if the driver refuses.
        """


def require_loader(name: str) -> str:
    """Return the name of a loader.

    Raises CuirError U512 for an unknown one.
    """
    if name not in LOADERS:
        raise CuirError.of("U512", f"no loader is called `{name}`", hint=f"loaders: {', '.join(LOADERS)}")
    return name


class DriverLaunch(NamedTuple):
    """A launch as cuLaunchKernelEx takes it.

    Addresses of its configuration and of the addresses of its arguments; `keep` keeps what these point to alive.
    """

    config: int
    pointers: int
    keep: tuple[object, ...]


class DriverKernel(LoadedKernel[DriverLaunch]):
    """A kernel in torch's context of one device."""

    def __init__(self, compiled: Compiled, layout: ArgumentLayout, device: torch.device):
        self.cu, self.cuda, self.layout, self.device = driver(), compiled.cuda, layout, device
        self.configs: dict[tuple[int, int], LaunchConfig] = {}  # by grid and stream
        self.launch, self.pointers = direct("cuLaunchKernelEx", 4), ctypes.c_void_p * len(layout.offsets)
        with self.activate():
            self.context = require_success(self.cuda, self.cu.cuCtxGetCurrent())
            self.module = require_success(self.cuda, self.cu.cuModuleLoadData(compiled.cubin))
            self.function = load_function(self.cuda, self.module, symbol(self.cuda.name))
            self.place = int(self.function)
            self.resident = count_resident(self.cuda, self.function)

    @contextmanager
    def activate(self) -> Iterator[None]:
        with torch.cuda.device(self.device):
            torch.empty(1, device=self.device)  # the context is torch's
            with relax_capture(self.cuda):
                yield

    def enter(self) -> bool:
        new = int(require_success(self.cuda, self.cu.cuCtxGetCurrent())) == 0
        if new:
            require_success(self.cuda, self.cu.cuCtxSetCurrent(self.context))
        return new

    def prepare(self, grid: int, stream: int, arguments: Arguments) -> DriverLaunch:
        address = arguments.address
        pointers = self.pointers(*[address + offset for offset in self.layout.offsets])
        if (grid, stream) not in self.configs:
            self.configs[grid, stream] = make_config(self.cuda, grid, stream)
        config = self.configs[grid, stream]
        return DriverLaunch(int(config.getPtr()), ctypes.addressof(pointers), (pointers, config, arguments))

    def start(self, launch: DriverLaunch) -> None:
        while (status := self.launch(launch.config, self.place, launch.pointers, None)) != 0:
            if status != INVALID_CONTEXT or not self.enter():
                require_success(self.cuda, (self.cu.CUresult(status),))
