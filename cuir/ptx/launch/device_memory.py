"""The device's memory in a launch: allocations of tensors and variables, and the parameters that point to them."""

from __future__ import annotations

import struct
from collections.abc import Sequence, Set
from dataclasses import dataclass

import numpy as np
import torch

from ...text.diagnostics import CuirError
from ..machine.memories import NOTHING, OUTSIDE, Memory, Shadow
from ..machine.program import CONST_BASE, GLOBAL_BASE
from ..module import Function, Module, Variable
from .structs import Argument, PlainArgument
from .tensor_maps import TensorMap

ALIGNMENT = 256


@dataclass(frozen=True)
class Allocation:
    """Part of global memory.

    Attributes:
        start: Its first byte in the memory.
        host: The bytes of the host that it stands for.
        defined: Which of them something has written, as bytes of 0 and 1; None if all are.
    """

    name: str
    start: int
    size: int
    host: np.ndarray | None
    defined: np.ndarray | None = None


class DeviceMemory(Memory):
    """Global memory, made of allocations with gaps between them.

    Attributes:
        allocations: Name, address and bytes of each.
    """

    def __init__(self, size: int, shadow: Shadow):
        super().__init__("global", GLOBAL_BASE, size, 1, shadow)
        self.allocations: list[tuple[str, int, int]] = []

    def allocate(self, a: Allocation) -> None:
        """Add an allocation with the host's bytes, or with nothing."""
        self.allocations.append((a.name, self.base + a.start, a.size))
        assert self.shadow is not None
        self.shadow.allocate(a.start, a.size, NOTHING if a.host is None else 0)
        if a.host is not None:
            self.bytes[a.start : a.start + a.size] = a.host
        if a.defined is not None:
            written = self.shadow.written[self.shadow.find_span(a.start, a.size)]
            written[~self._join(a.defined)] = NOTHING

    def _join(self, defined: np.ndarray) -> np.ndarray:
        """Return for each entry whether a byte of it is defined."""
        assert self.shadow is not None
        step = 1 << self.shadow.shift
        return np.asarray(np.pad(defined, (0, -len(defined) % step)).reshape(-1, step).any(1))

    def keep(self, a: Allocation) -> None:
        """Give the host what an allocation holds, and note what has been written."""
        if a.host is not None and a.host.flags.writeable:
            a.host[:] = self.bytes[a.start : a.start + a.size]
        if a.defined is not None and self.shadow is not None:
            written = np.repeat(self.shadow.written[self.shadow.find_span(a.start, a.size)] > 0, 1 << self.shadow.shift)
            a.defined[:] |= written[: a.size]


def view_storage(tensor: torch.Tensor) -> np.ndarray:
    """Return the bytes of a tensor's storage."""
    whole = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    return whole.numpy()


def find_span(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the first byte of a tensor in its storage, and the one behind the last."""
    if tensor.numel() == 0:
        return 0, 0
    size, first = tensor.element_size(), int(tensor.storage_offset())
    last = first + sum((int(n) - 1) * int(s) for n, s in zip(tensor.shape, tensor.stride()))
    return first * size, (last + 1) * size


def place_tensors(arguments: Sequence[Argument], names: Sequence[str], first: int) -> tuple[list[Allocation], list[int], int]:
    """Give tensors their allocations; tensors that share a storage share one.

    Returns the allocations, the address for each argument (0 if it is no tensor), and the bytes in all.
    """
    spans: dict[int, tuple[int, int]] = {}
    arguments = [a.tensor if isinstance(a, TensorMap) else a for a in arguments]
    for a in arguments:
        if isinstance(a, torch.Tensor):
            if a.device.type != "cpu":
                raise CuirError.of("U502", f"the machine reads tensors of the CPU, found one on {a.device}", hint="tensor.cpu()")
            low, high = find_span(a)
            key = a.untyped_storage().data_ptr()
            before = spans.get(key, (low, high))
            spans[key] = (min(low, before[0]), max(high, before[1]))
    starts: dict[int, int] = {}
    allocations: list[Allocation] = []
    addresses: list[int] = []
    end = first
    for a, name in zip(arguments, names):
        if not isinstance(a, torch.Tensor):
            addresses.append(0)
            continue
        key = a.untyped_storage().data_ptr()
        low, high = spans[key]
        if key not in starts or a.numel() == 0:
            start = -(-(end + ALIGNMENT) // ALIGNMENT) * ALIGNMENT + low % 16
            host = view_storage(a)[low:high] if a.numel() else np.zeros(0, np.uint8)
            allocations.append(Allocation(name, start, len(host), host))
            starts[key] = start
            end = start + len(host)
        addresses.append(GLOBAL_BASE + starts[key] + find_span(a)[0] - (low if a.numel() else 0))
    return allocations, addresses, end + ALIGNMENT


def place_variables(module: Module, named: Set[str], symbols: dict[str, int], state: dict[str, np.ndarray]) -> list[Allocation]:
    """Return allocations of the variables in global memory that a kernel can reach.

    Headers declare many of one byte that nobody uses; those would have each byte of the memory judged alone.

    Args:
        named: Names in the kernel's instructions.
        state: Bytes of variables, kept from launch to launch.
    """
    reached, work = set[str](), [n for n in named if n in module.variables]
    while work:
        name = work.pop()
        if name not in reached:
            reached.add(name)
            inner = (n.removeprefix("generic(").removesuffix(")") for _, n in module.variables[name].symbols)
            work += [n for n in inner if n in module.variables]
    return [
        Allocation(v.name, symbols[v.name] - GLOBAL_BASE, v.size, state[v.name])
        for v in module.variables.values()
        if v.space == "global" and v.size is not None and v.name in reached
    ]


def make_state(module: Module, symbols: dict[str, int]) -> dict[str, np.ndarray]:
    """Return the bytes of the variables in global and constant memory before the first launch."""
    state: dict[str, np.ndarray] = {}
    for v in module.variables.values():
        if v.space in ("global", "const") and v.size is not None:
            data = bytearray((v.data or b"").ljust(v.size, b"\0"))
            for offset, name in v.symbols:
                inner = name.removeprefix("generic(").removesuffix(")")
                if inner not in symbols:
                    raise CuirError.of("O123", f"`{v.name}` holds the address of `{inner}`, which has none")
                data[offset : offset + 8] = symbols[inner].to_bytes(8, "little")
            state[v.name] = np.frombuffer(data, np.uint8).copy()
    return state


def make_constants(module: Module, symbols: dict[str, int], state: dict[str, np.ndarray]) -> Memory:
    """Return constant memory with the variables in it."""
    placed = [v for v in module.variables.values() if v.space == "const" and v.size is not None]
    size = max((symbols[v.name] - CONST_BASE + (v.size or 0) for v in placed), default=0)
    memory = Memory("const", CONST_BASE, size, 1, None)
    for v in placed:
        start = symbols[v.name] - CONST_BASE
        memory.bytes[start : start + len(state[v.name])] = state[v.name]
    return memory


def pack_parameters(function: Function, arguments: Sequence[PlainArgument], addresses: Sequence[int]) -> bytes:
    """Return the bytes of a kernel's parameters. Raises CuirError U401 if arguments do not fit."""
    if len(arguments) != len(function.parameters):
        raise CuirError.of("U401", f"`{function.name}` takes {len(function.parameters)} arguments, found {len(arguments)}")
    data = b""
    for v, a, address in zip(function.parameters, arguments, addresses):
        data += bytes(-len(data) % v.alignment) + pack_argument(v, a, address)
    return data


def pack_argument(v: Variable, a: PlainArgument, address: int) -> bytes:
    """Return the bytes of one argument."""
    size = v.size or 0
    if isinstance(a, TensorMap):
        a = a.encode(address)
    if isinstance(a, bytes):
        if len(a) != size:
            raise CuirError.of("U401", f"`{v.name}` has {size} bytes, found {len(a)}")
        return a
    if isinstance(a, torch.Tensor) or a is None:
        if size != 8:
            raise CuirError.of("U401", f"`{v.name}` has {size} bytes, and takes no pointer")
        return address.to_bytes(8, "little")
    if not isinstance(a, (int, float)):
        raise CuirError.of(
            "U401", f"`{v.name}` takes a tensor, a number, bytes or None, found {type(a).__name__}", hint="pass a struct as bytes"
        )
    if isinstance(a, float) and v.type[:1] in "us":
        raise CuirError.of("U401", f"`{v.name}` takes a whole number, found {a}")
    if isinstance(a, float) or v.type[:1] == "f":
        return struct.pack({2: "<e", 4: "<f", 8: "<d"}[size], float(a))
    if not -(1 << 8 * size - 1) <= a < 1 << 8 * size:
        raise CuirError.of("U401", f"{a} does not fit the {size} bytes of `{v.name}`")
    return (int(a) % (1 << 8 * size)).to_bytes(size, "little")


def make_memory(allocations: Sequence[Allocation], size: int, shadow: Shadow) -> DeviceMemory:
    """Return global memory with these allocations."""
    memory = DeviceMemory(size, shadow)
    for a in allocations:
        memory.allocate(a)
    return memory


def make_shadow(size: int, knowledge: list) -> Shadow:
    """Return the shadow of global memory; knowledge: a list with that of the CTAs that run."""
    return Shadow(size, OUTSIDE, lambda: knowledge[0], True)
