"""What a mod is: its code and what it captures, told apart by what becomes part of a kernel and what a launch passes. Owns no tracing."""

from __future__ import annotations

import functools
import hashlib
import inspect
import marshal
import operator
import types
import weakref
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ..transfer.trace import foreign, globals_read

Path = tuple[tuple[str, str], ...]
Link = tuple[Callable[[Any, Any], Any], Any, Any, Any]


@dataclass(frozen=True)
class Identity:
    """structure: code, kinds of what is captured (dtypes and ranks of tensors, signs of numbers). values: the numbers, the tensors' shapes.

    Mods of one structure and equal values trace to the same program. tensors: those that are captured, each once, in the order of the walk.
    known: False if something captured cannot be compared: then the mods must be traced to know.

    links: (get, holder, key, value) for all that the walk went through; while `get(holder, key) is value` for each, and each of `sizes` (container, length)
    has its length, the walk would find the same. places: the kind ("tensor", "number", ...) and the path of each thing found, see `follow`.
    """

    structure: Hashable
    values: tuple[Hashable, ...]
    tensors: tuple[torch.Tensor, ...]
    known: bool = True
    links: tuple[Link, ...] = field(default=(), compare=False, repr=False)
    sizes: tuple[tuple[Any, int], ...] = field(default=(), compare=False, repr=False)
    places: tuple[tuple[str, Path, Any], ...] = field(default=(), compare=False, repr=False)

    def digest(self) -> str:
        """Of the structure; the same in another process."""
        return hashlib.sha256(repr(_plain(self.structure)).encode()).hexdigest()


def identity(*captured: Any) -> Identity:
    """The identity of mods (functions, or None) and other captured values together."""
    walk = _Walk()
    structure = tuple(walk.visit(c, (("root", str(i)),)) for i, c in enumerate(captured))
    return Identity(
        structure, tuple(walk.values), tuple(walk.tensors), walk.known, tuple(walk.links), tuple(walk.sizes), tuple(walk.places)
    )


def follow(roots: tuple[Any, ...], path: Path) -> Any:
    """What lies at a path of an identity. Plain steps, which torch.compile can go itself: so what it finds becomes an input of the graph, or a guard."""
    found: Any = roots
    for step, key in path:
        if step == "cell":
            found = found.__closure__[int(key)].cell_contents
        elif step == "global":
            found = found.__globals__[key]
        elif step == "attribute":
            found = getattr(found, key)
        elif step == "key":
            found = found[key]
        else:
            found = found[int(key)]
    return found


def _contents(cell: types.CellType, key: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not bound yet
        return _UNBOUND


def _entry(known: Mapping[Any, Any], key: Any) -> Any:
    return known.get(key, _UNBOUND)


_UNBOUND = object()


class _Walk:
    """Visits what the tracer captures."""

    def __init__(self) -> None:
        self.values: list[Hashable] = []
        self.tensors: list[torch.Tensor] = []
        self.seen: dict[int, int] = {}  # functions and objects on the way, by id: they may hold themselves
        self.links: list[Link] = []
        self.sizes: list[tuple[Any, int]] = []
        self.places: list[tuple[str, Path, Any]] = []
        self.known = True

    def visit(self, value: Any, path: Path) -> Hashable:
        if value is None or isinstance(value, (bool, str, bytes)):
            self.places.append(("constant", path, value))
            return type(value), value
        if isinstance(value, torch.Tensor):
            return self.tensor(value, path)
        if isinstance(value, (int, float)):
            self.places.append(("number", path, value))
            self.values.append(value.hex() if isinstance(value, float) else value)
            return type(value), (value > 0) - (value < 0)
        if isinstance(value, (list, Mapping)) and id(value) in self.seen:
            return "again", self.seen[id(value)]
        if isinstance(value, (list, tuple)):
            self.container(value, path)
            if isinstance(value, list):
                self.links += [(operator.getitem, value, i, v) for i, v in enumerate(value)]
            return type(value), *(self.visit(v, (*path, ("item", str(i)))) for i, v in enumerate(value))
        if isinstance(value, Mapping):
            self.container(value, path)
            return type(value), *((str(k), self.linked(_entry, value, k, v, (*path, ("key", k)))) for k, v in value.items())
        if isinstance(value, (types.ModuleType, type, types.BuiltinFunctionType)):
            return value
        if id(value) in self.seen:
            return "again", self.seen[id(value)]
        self.seen[id(value)] = len(self.seen)
        if isinstance(value, functools.partial):
            return "partial", *(self.visit(getattr(value, n), (*path, ("attribute", n))) for n in ("func", "args", "keywords"))
        if isinstance(value, types.MethodType):
            return "method", *(self.visit(getattr(value, n), (*path, ("attribute", n))) for n in ("__func__", "__self__"))
        if isinstance(value, types.FunctionType):
            self.places.append(("function", path, value))
            return value if foreign(value) else self.function(value, path)
        return self.thing(value, path)

    def linked(self, get: Callable[[Any, Any], Any], holder: Any, key: Any, value: Any, path: Path) -> Hashable:
        self.links.append((get, holder, key, value))
        return self.visit(value, path)

    def container(self, value: Any, path: Path) -> None:
        self.seen[id(value)] = len(self.seen)
        self.sizes.append((value, len(value)))
        self.places.append(("length", path, len(value)))

    def tensor(self, value: torch.Tensor, path: Path) -> Hashable:
        self.places.append(("tensor", path, value))
        for i, other in enumerate(self.tensors):
            if other is value:
                return "same", i
        self.tensors.append(value)
        self.values.append(tuple(value.shape))
        return "tensor", value.dtype, value.ndim

    def function(self, value: types.FunctionType, path: Path) -> Hashable:
        code, known = value.__code__, value.__globals__
        self.links += [(getattr, value, n, getattr(value, n)) for n in ("__code__", "__defaults__", "__kwdefaults__")]
        cells = tuple(self.cell(c, (*path, ("cell", str(i)))) for i, c in enumerate(value.__closure__ or ()))
        defaults = tuple(self.visit(getattr(value, n), (*path, ("attribute", n))) for n in ("__defaults__", "__kwdefaults__"))
        names = [n for n in _sorted_globals(code) if n in known]
        read = ((n, self.linked(_entry, known, n, known[n], (*path, ("global", n)))) for n in names)
        return "function", code, cells, defaults, *read

    def cell(self, cell: types.CellType, path: Path) -> Hashable:
        value = _contents(cell, None)
        if value is _UNBOUND:
            self.links.append((_contents, cell, None, value))
            return "empty"
        return self.linked(_contents, cell, None, value, path)

    def thing(self, value: Any, path: Path) -> Hashable:
        attributes = getattr(value, "__dict__", None)
        if attributes is not None:
            self.places.append(("object", path, value))
            self.links.append((getattr, value, "__dict__", attributes))
            self.sizes.append((attributes, len(attributes)))
            method = inspect.getattr_static(value, "__call__", None)
            found = tuple((str(n), self.linked(_entry, attributes, n, v, (*path, ("attribute", n)))) for n, v in attributes.items())
            called = (
                self.visit(method, (*path, ("attribute", "__class__"), ("attribute", "__call__")))
                if isinstance(method, types.FunctionType)
                else None
            )
            return "object", type(value), found, called
        try:
            hash(value)
        except TypeError:
            self.known = False
            return "unknown", type(value)
        self.places.append(("object", path, value))
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


class Same:
    """Whether mods are what they were at their walk, asked without another walk: all that was gone through is the same object, and no tensor was changed."""

    def __init__(self, who: Identity, mods: tuple[Any, ...], forget: Callable[[Any], object]):
        """forget: called when one of the mods dies. Raises TypeError for a mod that cannot be referred to weakly."""
        self.mods = tuple(None if m is None else weakref.ref(m, forget) for m in mods)
        self.links = tuple(link for link in who.links if not any(link[1] is m for m in mods))  # these must not keep the mods alive
        self.own = tuple((i, link[2], link[3]) for link in who.links for i, m in enumerate(mods) if link[1] is m)
        self.sizes = who.sizes
        others = (t for t in who.tensors if not any(t is m for m in mods))
        self.tensors = tuple((t, t._version, t.data_ptr(), t.shape, t.requires_grad) for t in others)
        self.given = tuple((i, m._version, m.data_ptr(), m.requires_grad) for i, m in enumerate(mods) if isinstance(m, torch.Tensor))

    @staticmethod
    def possible(who: Identity, mods: tuple[Any, ...]) -> bool:
        """A bound method is a new object each time it is asked for; inference tensors do not count what is written to them."""
        steady = not any(isinstance(m, types.MethodType) for m in mods)
        return who.known and steady and not any(t.is_inference() or t.is_meta for t in who.tensors)

    def holds(self, *mods: Any) -> bool:
        for ref, mod in zip(self.mods, mods):
            if (None if ref is None else ref()) is not mod:
                return False
        for i, name, value in self.own:
            if getattr(mods[i], name) is not value:
                return False
        for i, version, place, learned in self.given:
            if mods[i]._version != version or mods[i].data_ptr() != place or mods[i].requires_grad != learned:
                return False
        for get, holder, key, value in self.links:
            if get(holder, key) is not value:
                return False
        for container, size in self.sizes:
            if len(container) != size:
                return False
        for tensor, version, place, shape, learned in self.tensors:
            if tensor._version != version or tensor.data_ptr() != place or tensor.shape != shape or tensor.requires_grad != learned:
                return False
        return True


__all__ = ["Identity", "Path", "Same", "follow", "identity"]
