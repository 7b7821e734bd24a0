"""The parameters of a kernel as one buffer.

Tensor maps first, then pointers, strides, the counter, scalars and dims, each at its natural alignment.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..lowering import Cuda
from ..lowering.lowered import MAP_BYTES

MAP_ALIGNMENT = 64  # of a tensor map
POINTER, STRIDE, DIM = "Q", "q", "i"  # codes of `struct`, as those of scalars
SCALARS = {"f32": "f", "i32": "i", "bool": "?"}


@dataclass(frozen=True)
class Parameter:
    """A parameter of a kernel.

    code: of the module `struct`, "" for a tensor map; offset, size: in bytes.
    """

    name: str
    code: str
    offset: int
    size: int


class Arguments(NamedTuple):
    """Packed arguments of a launch.

    address: of the first byte, aligned for tensor maps; memory: the object that keeps it alive.
    """

    address: int
    size: int
    memory: object

    def as_bytes(self, first: int = 0) -> bytes:
        """Copy the buffer.

        first: offset of the first parameter, whose bytes before it are zeros.
        """
        return bytes(first) + ctypes.string_at(self.address, self.size)


class ArgumentLayout:
    """Offsets of a kernel's parameters, in the order of its CUDA signature (`lowering/cuda/frame.py`)."""

    def __init__(self, cuda: Cuda):
        fields = [(name, code) for name, code in _fields(cuda)]
        self.first = MAP_BYTES * len(cuda.maps)  # offset of the first parameter behind the tensor maps
        self.struct = struct.Struct("".join(code for _, code in fields))
        self.size = self.first + self.struct.size
        maps = [Parameter(m.name, "", MAP_BYTES * i, MAP_BYTES) for i, m in enumerate(cuda.maps)]
        codes = ""
        values = []
        for name, code in fields:
            codes += code
            size = struct.calcsize(code)
            values.append(Parameter(name, code, self.first + struct.calcsize(codes) - size, size))
        self.parameters = (*maps, *values)
        self.offsets = tuple(p.offset for p in self.parameters)
        self._memory = ctypes.c_uint8 * (self.size + MAP_ALIGNMENT)

    def pack(self, maps: Sequence[bytes], values: Sequence[int | float | bool]) -> Arguments:
        """Pack encoded tensor maps and the values of all other parameters, in their order."""
        memory = self._memory()
        start = ctypes.addressof(memory)
        address = (start + MAP_ALIGNMENT - 1) // MAP_ALIGNMENT * MAP_ALIGNMENT
        if maps:
            ctypes.memmove(address, b"".join(maps), self.first)
        self.struct.pack_into(memory, address - start + self.first, *values)
        return Arguments(address, self.size, memory)


def round_parameter(dtype: str, value: int | float | bool) -> int | float | bool:
    """Round a number as a scalar parameter of this dtype does."""
    return ctypes.c_float(value).value if dtype == "f32" else value


def _fields(cuda: Cuda) -> list[tuple[str, str]]:
    tensors = {t.name: t for t in cuda.checked.tensors}
    fields = []
    for name in cuda.tensors:
        fields.append((name, POINTER))
        if not tensors[name].scratch:  # strides of scratch are constants in the text
            fields += [(f"{name}.stride({i})", STRIDE) for i in range(len(tensors[name].dims) - 1)]
    if cuda.counter:
        fields.append(("counter", POINTER))
    fields += [(s.name, SCALARS[s.dtype.name]) for s in cuda.checked.scalars]
    return fields + [(d, DIM) for d in cuda.dims]
