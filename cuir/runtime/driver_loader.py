"""The default loader: the CUDA driver API through cuda-bindings, in torch's context."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

from ..lowering.cuda.writer import symbol
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
from .loader import LoadedKernel
from .nvcc import Compiled


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
