"""Calls between Python and an extension that was compiled against the stand-in for PyTorch's headers."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch

from .arena_tensors import DeviceArena

NONE, TENSOR, INTEGER, REAL, BOOLEAN, INTEGERS, TENSORS, TEXT, DTYPE, DEVICE = range(10)
MOST_DIMS = 12
DTYPES = {
    **{0: torch.uint8, 1: torch.int8, 2: torch.int16, 3: torch.int32, 4: torch.int64, 5: torch.float16},
    **{6: torch.float32, 7: torch.float64, 11: torch.bool, 15: torch.bfloat16},
}
NUMBERS = {dtype: number for number, dtype in DTYPES.items()}


class Value(ctypes.Structure):
    """A value that passes the border, as `Value` of the header."""

    _fields_ = [
        ("kind", ctypes.c_int32),
        ("count", ctypes.c_int32),
        ("integer", ctypes.c_int64),
        ("real", ctypes.c_double),
        ("items", ctypes.c_void_p),
    ]


class Info(ctypes.Structure):
    """Facts of a tensor, as `Info` of the header."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("dims", "numel", "itemsize")),
        ("sizes", ctypes.c_int64 * MOST_DIMS),
        ("strides", ctypes.c_int64 * MOST_DIMS),
        *((name, ctypes.c_int32) for name in ("dtype", "contiguous", "on_device", "requires_grad")),
    ]


CALL = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(Value), ctypes.c_int, ctypes.POINTER(Value))
RELEASE = ctypes.CFUNCTYPE(None, ctypes.c_int64)
DESCRIBE = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.POINTER(Info))
ERROR = ctypes.CFUNCTYPE(ctypes.c_void_p)
STREAM = ctypes.CFUNCTYPE(ctypes.c_void_p)


class Host(ctypes.Structure):
    """Functions that an extension calls, as `Host` of the header."""

    _fields_ = [("call", CALL), ("release", RELEASE), ("describe", DESCRIBE), ("error", ERROR), ("stream", STREAM)]


class ExtensionHost:
    """Python's side of all extensions.

    Attributes:
        get_stream: Returns the handle of the current stream.
    """

    def __init__(self, arena: DeviceArena, get_stream: Callable[[], int]):
        self.arena, self.get_stream = arena, get_stream
        self.tensors: dict[int, torch.Tensor] = {}
        self.numbers = itertools.count(1)
        self.kept: list[object] = []  # what a value that was passed last points to
        self.error = ctypes.create_string_buffer(b"")
        self.host = Host(
            CALL(self._call),
            RELEASE(self._release),
            DESCRIBE(self._describe),
            ERROR(lambda: ctypes.addressof(self.error)),
            STREAM(get_stream),
        )

    def load(self, library: Path, name: str) -> ModuleType:
        """Return a module with the functions of an extension."""
        loaded = ctypes.CDLL(str(library))
        loaded.cuir_set_host(ctypes.byref(self.host))
        loaded.cuir_export.restype = loaded.cuir_error.restype = ctypes.c_char_p
        module = ModuleType(name)
        for index in itertools.count():
            exported = loaded.cuir_export(index)
            if exported is None:
                return module
            setattr(module, exported.decode(), self._make_function(loaded, index))
        raise AssertionError

    def _make_function(self, library: ctypes.CDLL, index: int) -> Callable[..., object]:
        """Return a function of an extension."""

        def call(*arguments: object, **named: object) -> object:
            values = [*arguments, *named.values()]
            boxes, kept = (Value * max(1, len(values)))(), list[object]()
            for box, value in zip(boxes, values):
                self._box(value, box, kept)
            result = Value()
            if library.cuir_call(index, boxes, len(values), ctypes.byref(result)):
                raise RuntimeError(library.cuir_error().decode("utf-8", "replace"))
            unboxed = self._unbox(result)
            library.cuir_drop()
            return unboxed

        return call

    def _box(self, value: object, box: Value, kept: list[object]) -> None:
        """Fill a value. Raises TypeError."""
        if value is None:
            box.kind = NONE
        elif isinstance(value, torch.Tensor):
            box.kind, box.integer = TENSOR, self._enter(value)
        elif isinstance(value, bool):
            box.kind, box.integer = BOOLEAN, value
        elif isinstance(value, int):
            box.kind, box.integer = INTEGER, value
        elif isinstance(value, float):
            box.kind, box.real = REAL, value
        elif isinstance(value, torch.dtype):
            box.kind, box.integer = DTYPE, NUMBERS[value]
        elif isinstance(value, str):
            kept.append(text := ctypes.create_string_buffer(value.encode()))
            box.kind, box.items = TEXT, ctypes.addressof(text)
        elif isinstance(value, (list, tuple)) and all(isinstance(x, (int, torch.Tensor)) for x in value):
            is_tensors = bool(value) and isinstance(value[0], torch.Tensor)
            numbers = [self._enter(x) if isinstance(x, torch.Tensor) else int(x) for x in value]
            kept.append(array := (ctypes.c_int64 * max(1, len(numbers)))(*numbers))
            box.kind, box.count, box.items = TENSORS if is_tensors else INTEGERS, len(numbers), ctypes.addressof(array)
        else:
            raise TypeError(f"incompatible function arguments: {type(value).__name__}")

    def _unbox(self, box: Value) -> object:
        """Return what a value holds."""
        kind = box.kind
        if kind == TENSOR:
            return self.tensors[box.integer]
        if kind in (INTEGER, BOOLEAN):
            return bool(box.integer) if kind == BOOLEAN else box.integer
        if kind == REAL:
            return box.real
        if kind == TEXT:
            return ctypes.string_at(box.items or 0).decode()
        if kind == DTYPE:
            return DTYPES[box.integer]
        if kind == DEVICE:
            return torch.device("cuda" if box.integer else "cpu")
        if kind in (INTEGERS, TENSORS):
            numbers = list((ctypes.c_int64 * box.count).from_address(box.items)) if box.count else []
            return [self.tensors[n] for n in numbers] if kind == TENSORS else numbers
        return None

    def _enter(self, tensor: torch.Tensor) -> int:
        """Return a new handle of a tensor."""
        number = next(self.numbers)
        self.tensors[number] = tensor
        return number

    # ---- what an extension calls
    def _release(self, handle: int) -> None:
        self.tensors.pop(handle, None)

    def _describe(self, handle: int, info: ctypes._Pointer[Info]) -> None:
        """Fill in the facts of a tensor."""
        tensor, to = self.tensors[handle], info.contents
        with torch._C.DisableTorchFunction():
            to.data, to.dims, to.numel, to.itemsize = tensor.data_ptr(), tensor.dim(), tensor.numel(), tensor.element_size()
            to.sizes[: tensor.dim()], to.strides[: tensor.dim()] = tuple(tensor.shape), tensor.stride()
            to.dtype, to.contiguous = NUMBERS.get(tensor.dtype, 44), tensor.is_contiguous()
            to.on_device, to.requires_grad = self.arena.holds(tensor) or not tensor.numel(), tensor.requires_grad

    def _call(self, name: bytes, arguments: ctypes._Pointer[Value], count: int, result: ctypes._Pointer[Value]) -> int:
        """Run an operation of PyTorch by its name: a method of its first argument, or a function of `torch`."""
        try:
            values = [self._unbox(arguments[i]) for i in range(count)]
            named = {key: v for key, kind in (("dtype", torch.dtype), ("device", torch.device)) for v in values if isinstance(v, kind)}
            plain = [v for v in values if not isinstance(v, (torch.dtype, torch.device))]
            owner, _, method = name.decode().rpartition(".")
            function = getattr(torch, method) if owner else getattr(plain.pop(0), method)
            self.kept = []
            self._box(function(*plain, **named), result.contents, self.kept)
            return 0
        except Exception as error:  # the extension throws it on
            self.error = ctypes.create_string_buffer(f"{type(error).__name__}: {error}".encode())
            return 1
