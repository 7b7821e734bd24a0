"""Tensors of a solution: those "on the device" lie in the memory that the machine for PTX maps, at the device's addresses.

PyTorch computes on them as on the CPU, and what it computes is recorded. This module runs in the solution's process.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

BASE = 0x7F0000000000  # of the device's memory, as the stand-in for CUDA's runtime maps it
NAN_BYTE = 0xFF  # in every byte: NaN as a float
DEVICE = torch.device("cuda", 0)


class DeviceArena:
    """The device's memory, and which of its bytes something has written.

    Attributes:
        recorded: Operations of PyTorch on tensors, in their order.
    """

    def __init__(self, shadow_file: int, capacity: int):
        self.runtime = ctypes.CDLL(None)
        self.capacity = capacity
        self.defined = torch.frombuffer(mmap.mmap(shadow_file, capacity), dtype=torch.uint8)
        self.recorded: list[str] = []

    def holds(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor lies on the device."""
        return BASE <= tensor.untyped_storage().data_ptr() < BASE + self.capacity

    def allocate(self, size: int) -> torch.Tensor:
        """Return bytes on the device that nothing has written, and that are NaN as floats. Raises RuntimeError."""
        if size == 0:
            return torch.empty(0, dtype=torch.uint8)
        address = ctypes.c_void_p()
        if self.runtime.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(size)) or address.value is None:
            raise RuntimeError(f"CUDA out of memory. Tried to allocate {size} bytes")
        kind: Any = type("Block", (ctypes.c_uint8 * size,), {})  # a class of its own can be referred to weakly
        block = kind.from_address(address.value)
        weakref.finalize(block, self.runtime.cudaFree, ctypes.c_void_p(address.value))
        made = torch.frombuffer(block, dtype=torch.uint8)
        made.fill_(NAN_BYTE)
        return made

    def move(self, tensor: torch.Tensor, is_defined: bool = True) -> torch.Tensor:
        """Return a tensor on the device with the same elements and strides."""
        if not isinstance(tensor, torch.Tensor) or self.holds(tensor) or tensor.layout != torch.strided:
            return tensor
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            source = tensor.detach()
            last = sum((n - 1) * s for n, s in zip(source.shape, source.stride())) + 1 if source.numel() else 0
            storage = self.allocate(last * source.element_size())
            made = torch.empty(0, dtype=source.dtype).set_(storage.untyped_storage(), 0, source.shape, source.stride())
            if is_defined and made.numel():
                made.copy_(source)
                self.mark_defined(made)
        return made

    def find_bytes(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return which bytes of a contiguous tensor on the device something has written."""
        first = tensor.data_ptr() - BASE
        return self.defined[first : first + tensor.numel() * tensor.element_size()]

    def mark_defined(self, tensor: torch.Tensor) -> None:
        """Note that the elements of a tensor have been written."""
        if tensor.numel() and self.holds(tensor):
            with torch._C._DisableTorchDispatch():
                size, first = tensor.element_size(), tensor.data_ptr() - BASE
                window = self.defined[first : first + (sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride())) + 1) * size]
                whole = torch.as_strided(window, (*tensor.shape, size), (*(s * size for s in tensor.stride()), 1))
                whole.fill_(1)


class DispatchMode(TorchDispatchMode):
    """Mode in which operations on tensors of the device give tensors of the device."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: without a compiler in the process, its import takes seconds for nothing."""
        return False

    def __init__(self, arena: DeviceArena):
        super().__init__()
        self.arena = arena

    def __torch_dispatch__(self, func: Any, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        """Run one operation."""
        arena, kwargs = self.arena, dict(kwargs or {})
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        on_device = any(arena.holds(t) for t in tensors)
        result = func(*args, **kwargs)
        name = str(func.overloadpacket).removeprefix("aten.")
        if not on_device and any(t.numel() > 1 for t in tensors):
            arena.recorded.append(f"{name} on the CPU")
        if on_device:
            arena.recorded.append(name)
            for argument, value in zip(func._schema.arguments, args):
                if argument.alias_info is not None and argument.alias_info.is_write and isinstance(value, torch.Tensor):
                    arena.mark_defined(value)
            for value in tree_leaves(kwargs.get("out")):
                if isinstance(value, torch.Tensor):
                    arena.mark_defined(value)
            result = tree_map(lambda t: arena.move(t, "empty" not in name) if isinstance(t, torch.Tensor) else t, result)
        return result


class FunctionMode(TorchFunctionMode):
    """Mode in which `device="cuda"`, `.cuda()` and `.device` mean the device of the machine."""

    def __init__(self, arena: DeviceArena):
        super().__init__()
        self.arena = arena
        getters = {"is_cuda": lambda t: arena.holds(t), "device": lambda t: DEVICE if arena.holds(t) else torch.device("cpu")}
        getters["get_device"] = lambda t: 0 if arena.holds(t) else -1
        self.answers: dict[object, Callable[[torch.Tensor], object]] = {
            torch.Tensor.is_cuda.__get__: getters["is_cuda"],  # type: ignore[attr-defined]
            torch.Tensor.device.__get__: getters["device"],
            torch.Tensor.get_device: getters["get_device"],
        }

    def __torch_function__(self, func: Any, types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        """Run one call of PyTorch."""
        kwargs, arena = dict(kwargs or {}), self.arena
        if func in self.answers:
            return self.answers[func](args[0])
        if func is torch.Tensor.cuda:
            return arena.move(args[0])
        if func is torch.Tensor.cpu:
            return to_host(args[0])
        if func is torch.Tensor.pin_memory:
            return args[0]
        place = next((p for a in (*args[1:], kwargs.get("device")) if (p := read_device(a)) is not None), None)
        if place is None:
            return func(*args, **kwargs)
        if func is torch.Tensor.to:
            rest = [a for a in args[1:] if read_device(a) is None]
            kwargs.pop("device", None)
            moved = to_host(args[0]) if place == "cpu" else arena.move(args[0])
            return func(moved, *rest, **kwargs) if rest or kwargs.get("dtype") is not None else moved
        if "device" in kwargs:
            kwargs["device"] = torch.device("cpu")
        kwargs.pop("pin_memory", None)
        made = func(*args, **kwargs)
        is_defined = "empty" not in getattr(func, "__name__", "")
        return tree_map(lambda t: arena.move(t, is_defined) if isinstance(t, torch.Tensor) and place == "cuda" else t, made)


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of a tensor in the host's memory."""
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction(), torch.no_grad():
        return tensor.detach().clone()


def read_device(value: object) -> str | None:
    """Return the kind of device that an argument names, if it names one."""
    if isinstance(value, torch.device):
        return value.type
    if isinstance(value, str) and (value == "cpu" or value.partition(":")[0] == "cuda"):
        return value.partition(":")[0]
    return None


@contextlib.contextmanager
def use_device(arena: DeviceArena) -> Iterator[None]:
    """Run a block with the device's tensors."""
    with torch.no_grad(), FunctionMode(arena), DispatchMode(arena):
        yield
