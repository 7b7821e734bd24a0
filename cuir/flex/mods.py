"""What a mod is: its code and what it captures, told apart by what becomes part of a kernel and what a launch passes. Owns no tracing."""

from __future__ import annotations

import functools
import hashlib
import inspect
import marshal
import types
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..spec import Specification
from ..transfer.rebuilt import rebuilt
from ..transfer.trace import foreign, globals_read


@dataclass(frozen=True)
class Identity:
    """structure: code, kinds of what is captured (dtypes and ranks of tensors, signs of numbers). values: the numbers, the tensors' shapes.

    Mods of one structure and equal values trace to the same program. tensors: those that are captured, each once, in the order of the walk.
    known: False if something captured cannot be compared: then the mods must be traced to know.
    """

    structure: Hashable
    values: tuple[Hashable, ...]
    tensors: tuple[torch.Tensor, ...]
    known: bool = True

    def digest(self) -> str:
        """Of the structure; the same in another process."""
        return hashlib.sha256(repr(_plain(self.structure)).encode()).hexdigest()


def identity(*captured: Any) -> Identity:
    """The identity of mods (functions, or None) and other captured values together."""
    walk = _Walk()
    structure = tuple(walk.visit(c) for c in captured)
    return Identity(structure, tuple(walk.values), tuple(walk.tensors), walk.known)


class _Walk:
    """Visits what the tracer captures."""

    def __init__(self) -> None:
        self.values: list[Hashable] = []
        self.tensors: list[torch.Tensor] = []
        self.places: dict[int, int] = {}  # of functions and objects on the way, by id: they may hold themselves
        self.known = True

    def visit(self, value: Any) -> Hashable:
        if value is None or isinstance(value, (bool, str, bytes)):
            return type(value), value
        if isinstance(value, torch.Tensor):
            if value.ndim:
                return self.tensor(value)
            value = value.item()  # the tracer takes it for a number
        if isinstance(value, (int, float)):
            self.values.append(value.hex() if isinstance(value, float) else value)
            return type(value), (value > 0) - (value < 0)
        if isinstance(value, (list, tuple)):
            return type(value), *(self.visit(v) for v in value)
        if isinstance(value, Mapping):
            return type(value), *((str(k), self.visit(v)) for k, v in value.items())
        if isinstance(value, (types.ModuleType, type, types.BuiltinFunctionType)):
            return value
        if id(value) in self.places:
            return "again", self.places[id(value)]
        self.places[id(value)] = len(self.places)
        if isinstance(value, functools.partial):
            return "partial", self.visit(value.func), self.visit(value.args), self.visit(value.keywords)
        if isinstance(value, types.MethodType):
            return "method", self.visit(value.__func__), self.visit(value.__self__)
        if isinstance(value, types.FunctionType):
            return value if foreign(value) else self.function(value)
        return self.thing(value)

    def tensor(self, value: torch.Tensor) -> Hashable:
        for i, other in enumerate(self.tensors):
            if other is value:
                return "same", i
        self.tensors.append(value)
        self.values.append(tuple(value.shape))
        return "tensor", value.dtype, value.ndim

    def function(self, value: types.FunctionType) -> Hashable:
        code, known = value.__code__, value.__globals__
        cells = tuple(self.cell(c) for c in value.__closure__ or ())
        defaults = self.visit(value.__defaults__), self.visit(value.__kwdefaults__)
        return "function", code, cells, defaults, *((n, self.visit(known[n])) for n in _sorted_globals(code) if n in known)

    def cell(self, cell: types.CellType) -> Hashable:
        try:
            return self.visit(cell.cell_contents)
        except ValueError:  # not bound yet
            return "empty"

    def thing(self, value: Any) -> Hashable:
        attributes = getattr(value, "__dict__", None)
        if attributes is not None:
            method = inspect.getattr_static(value, "__call__", None)
            return "object", type(value), self.visit(attributes), self.visit(method) if isinstance(method, types.FunctionType) else None
        try:
            hash(value)
        except TypeError:
            self.known = False
            return "unknown", type(value)
        return type(value), value


@functools.cache
def _sorted_globals(code: types.CodeType) -> tuple[str, ...]:
    return tuple(sorted(globals_read(code)))


def _plain(part: Any) -> Any:
    """A part of a structure without anything that belongs to this process."""
    if isinstance(part, tuple):
        return tuple(_plain(p) for p in part)
    if isinstance(part, types.CodeType):
        return marshal.dumps(part)
    if isinstance(part, (type, types.FunctionType, types.BuiltinFunctionType)):
        return f"{part.__module__}.{part.__qualname__}"
    return part.__name__ if isinstance(part, types.ModuleType) else repr(part)


# ---- the mods as verification calls them
def on_cpu(spec: Specification) -> Specification:
    """The variant with its captured tensors on the CPU, where reads outside of a tensor give 0, as in a kernel: verification tries lengths that the
    user's tensors were not made for."""

    def moved(x: torch.Tensor) -> torch.Tensor:
        return x.detach().cpu().as_subclass(Bounded) if x.ndim else x

    return rebuilt(spec, moved)


class Bounded(torch.Tensor):
    """A tensor that is read by one index for each dim, at once or one after the other; outside it is 0."""

    given: tuple[Any, ...] = ()

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            if func is torch.Tensor.__getitem__ and isinstance(args[0], Bounded):
                return args[0].read(args[1])
            found = func(*args, **(kwargs or {}))
            return found.as_subclass(torch.Tensor) if isinstance(found, Bounded) and func is not torch.Tensor.as_subclass else found

    def read(self, item: Any) -> torch.Tensor:
        base = self.as_subclass(torch.Tensor)
        indices = (*self.given, *(item if isinstance(item, tuple) else (item,)))
        if len(indices) < base.ndim:
            more = base.as_subclass(Bounded)
            more.given = indices
            return more
        places = torch.broadcast_tensors(*(torch.as_tensor(i, dtype=torch.int64) for i in indices))
        inside = torch.ones_like(places[0], dtype=torch.bool)
        for place, size in zip(places, base.shape):
            inside = inside & (place >= 0) & (place < size)
        nothing = torch.zeros((), dtype=base.dtype)
        if base.numel() == 0:
            return nothing.expand(inside.shape)
        return torch.where(inside, base[tuple(p.clamp(0, n - 1) for p, n in zip(places, base.shape))], nothing)


__all__ = ["Bounded", "Identity", "identity", "on_cpu"]
