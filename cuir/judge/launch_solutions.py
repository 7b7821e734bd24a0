"""Launches of kernels from Python in a solution's process: by a launch file, or by a compiler that gives PTX."""

from __future__ import annotations

import ctypes
import itertools
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from ..ptx.launch.compile_ptx import Build, choose_kernel, compile_to_ptx
from ..ptx.launch.device_memory import pack_argument
from ..ptx.launch.fat_binaries import HEAD, MAGIC, PART, PTX_KIND
from ..ptx.launch.kernel_launch import KernelCall
from ..ptx.launch.tensor_maps import TensorMap
from ..ptx.module import Function, read_module
from ..spec.loading import import_file
from .arena_tensors import DeviceArena

WRAPPER_MAGIC = 0x466243B1
Argument = object


class Extent(ctypes.Structure):
    """CUDA's dim3."""

    _fields_ = [(name, ctypes.c_uint) for name in "xyz"]


class EnteredKernel:
    """A kernel of PTX, entered into the stand-in for CUDA's runtime."""

    _hosts = itertools.count(0x10000, 16)  # addresses that stand for functions of a host program

    def __init__(self, arena: DeviceArena, text: str, function: Function):
        self.arena, self.function = arena, function
        self.kept, self.host = enter_kernel(arena, text, function.name, next(self._hosts))

    def launch(self, grid: Sequence[int], block: Sequence[int], arguments: Sequence[Argument], shared: int, stream: int) -> None:
        """Launch the kernel. Raises RuntimeError as CUDA's status, CuirError U401."""
        kept = []
        for v, a in zip(self.function.parameters, arguments, strict=True):
            held = a.tensor if isinstance(a, TensorMap) else a
            address = held.data_ptr() if isinstance(held, torch.Tensor) else 0
            packed = pack_argument(v, a, address)  # type: ignore[arg-type]
            kept.append(ctypes.create_string_buffer(packed, max(1, len(packed))))
        pointers = (ctypes.c_void_p * max(1, len(kept)))(*(ctypes.addressof(b) for b in kept))
        status = self.arena.runtime.cudaLaunchKernel(
            *(ctypes.c_void_p(self.host), Extent(*grid), Extent(*block), pointers, ctypes.c_size_t(shared), ctypes.c_void_p(stream))
        )
        if status:
            raise RuntimeError(f"CUDA error {status} of a launch of {self.function.name}")


def enter_kernel(arena: DeviceArena, text: str, name: str, host: int) -> tuple[object, int]:
    """Enter a kernel of PTX into the runtime, under an address; return what must stay in memory, and the address."""
    data = make_fat_binary(text)
    kept = ctypes.create_string_buffer(data, len(data))
    wrapper = ctypes.create_string_buffer(struct.pack("<IIQQ", WRAPPER_MAGIC, 1, ctypes.addressof(kept), 0), 24)
    arena.runtime.__cudaRegisterFatBinary.restype = ctypes.c_void_p
    handle = ctypes.c_void_p(arena.runtime.__cudaRegisterFatBinary(wrapper))
    encoded = name.encode()
    arena.runtime.__cudaRegisterFunction(handle, ctypes.c_void_p(host), encoded, encoded, -1, None, None, None, None, None)
    return (kept, wrapper), host


def make_fat_binary(text: str) -> bytes:
    """Return a fat binary with one PTX."""
    content = text.encode() + b"\0"
    part = PART.pack(PTX_KIND, 0x101, PART.size, len(content), len(content), 0, 0, 0, 90, 0, 0)
    return HEAD.pack(MAGIC, 1, HEAD.size, len(part) + len(content)) + part + content


class LaunchSolution:
    """A CUDA source with a launch file: `launch(*inputs)` returns a pair of launches and outputs."""

    def __init__(self, source: Path, launch: Path, arena: DeviceArena, arch: str, get_stream: Callable[[], int]):
        self.source, self.arena, self.get_stream = source, arena, get_stream
        text = source.read_text(encoding="utf-8") if source.suffix == ".ptx" else compile_to_ptx(source, Build(arch))
        self.module = read_module(text)
        self.function = import_file(launch, "the launch file").launch
        names = [f.name for f in self.module.functions.values() if f.is_entry]
        self.names = names
        self.text = text
        self.kernels: dict[str, EnteredKernel] = {}

    def run(self, *inputs: object) -> object:
        """Run the launches for some inputs, and return the outputs. Raises TypeError for another result of `launch`."""
        made = self.function(*inputs)
        if not (isinstance(made, tuple) and len(made) == 2):
            raise TypeError("`launch` returns a pair: a KernelCall or a list of them, and the outputs")
        calls, outputs = made
        for call in calls if isinstance(calls, (list, tuple)) else [calls]:
            if not isinstance(call, KernelCall):
                raise TypeError(f"`launch` returns launches, found {type(call).__name__}")
            name = choose_kernel(self.names, call.kernel, self.source)[0]
            if name not in self.kernels:
                self.kernels[name] = EnteredKernel(self.arena, self.text, self.module.functions[name])
            self.kernels[name].launch(call.grid, call.block, call.arguments, call.shared, self.get_stream())
        return outputs
