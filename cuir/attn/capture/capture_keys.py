"""Capture keys of mods: their code and captured values.

A key splits these into the part that decides the kernel, and launch arguments.
Nothing is traced here.
"""

from __future__ import annotations

import hashlib
import types
import warnings
import weakref
from collections import defaultdict
from collections.abc import Callable, Hashable, Sized
from dataclasses import dataclass, field
from typing import Any

import torch

from ...text.source import function_span
from ..splicing.captured_arguments import are_unchanged, memory_of, state_of
from .capture_walk import FUNCTIONS, CapturedPlace, Link, Path, TooMuchError, Walk


@dataclass(frozen=True)
class CaptureKey:
    """The capture key of mods.

    Mods of one structure and equal values trace to the same program.

    Attributes:
        structure: code, and kinds of captured values (dtypes and ranks of tensors, signs of numbers).
        values: the numbers, and the shapes of the tensors.
        tensors: the captured tensors, each once, in the order of the walk.
        comparable: False if a captured value cannot be compared; the mods must then be traced for each call.
        links: (get, holder, key, value) of everything that the walk went through. While `get(holder, key) is value` for
            each, and each of `sizes` (container, length) has its length, the walk would give the same key.
        places: the kind ("tensor", "number", ...) and the path of each captured value, see `follow`.
    """

    structure: Hashable
    values: tuple[Hashable, ...]
    tensors: tuple[torch.Tensor, ...]
    comparable: bool = True
    links: tuple[Link, ...] = field(default=(), compare=False, repr=False)
    sizes: tuple[tuple[Sized, int], ...] = field(default=(), compare=False, repr=False)
    places: tuple[CapturedPlace, ...] = field(default=(), compare=False, repr=False)

    def unwritten(self) -> bool:
        """Return True if all objects that the walk went through are unchanged.

        Data of tensors are not compared.
        """
        try:
            return all(get(holder, key) is value for get, holder, key, value in self.links) and all(len(c) == n for c, n in self.sizes)
        except Exception:  # an entry or an attribute is gone; a user's own container then raises what it likes
            return False

    def digest(self) -> str:
        """Return a digest of the structure that is the same in another process."""
        return hashlib.sha256(repr(_plain(self.structure)).encode()).hexdigest()


def make_capture_key(*captured: object) -> CaptureKey:
    """Return the capture key of mods (functions, or None) and other captured values together.

    Mods that lead to more than is compared have no usable key: each call traces them.
    """
    walk = Walk()
    try:
        structure = (*(walk.visit(c, (("root", str(i)),)) for i, c in enumerate(captured)), *walk.visit_members())
    except (TooMuchError, RecursionError):
        _warn(next(filter(callable, captured), None))
        return CaptureKey(("too much",), (), (), comparable=False)
    return CaptureKey(
        structure, tuple(walk.values), tuple(walk.tensors), walk.comparable, tuple(walk.links), tuple(walk.sizes), tuple(walk.places)
    )


def _warn(mod: object) -> None:
    """Warn once for each place that a mod is traced in every call."""
    span = function_span(mod) if isinstance(mod, types.FunctionType) else None
    place = f"{span.source.name}:{span.line}: " if span is not None else ""
    warnings.warn(
        f"{place}what this mod holds leads to more than {FUNCTIONS} functions, so that no call can tell whether it is the one before: each call traces it again. "
        "Close over what it reads (`bias = self.bias`), not over the object that has it",
        stacklevel=2,
    )


def follow(roots: tuple[object, ...], path: Path) -> Any:
    """Return the value at a path of a capture key.

    The steps are plain ones that torch.compile can trace, so that the value becomes an input of the graph, or a guard.
    """
    value: Any = roots  # each step leads to anything
    for step, key in path:
        if step == "cell":
            value = value.__closure__[int(key)].cell_contents
        elif step == "global":
            value = value.__globals__[key]
        elif step == "attribute":
            value = getattr(value, key)
        elif step == "key":
            value = value[key]
        else:
            value = value[int(key)]
    return value


def _plain(part: Hashable) -> Hashable:
    """Return a part of a structure in a form that another process computes equally."""
    if isinstance(part, tuple):
        return tuple(_plain(p) for p in part)
    if isinstance(part, types.CodeType):
        return _describe_code(part)
    if isinstance(part, (type, types.FunctionType, types.BuiltinFunctionType)):
        return f"{part.__module__}.{part.__qualname__}"
    return part.__name__ if isinstance(part, types.ModuleType) else repr(part)


# a walk links all of them; compared without a call for each
_OF_FUNCTIONS = ("__code__", "__defaults__", "__kwdefaults__", "__dict__")


_OF_CODE = (
    "co_name", "co_code", "co_exceptiontable", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_flags", "co_argcount",
    "co_posonlyargcount", "co_kwonlyargcount",
)  # fmt: skip


def _describe_code(code: types.CodeType) -> Hashable:
    """Return what a function does, without its file and lines: these differ in a copy of it."""
    return (*(getattr(code, n) for n in _OF_CODE), *map(_describe_constant, code.co_consts))


def _describe_constant(value: object) -> Hashable:
    if isinstance(value, types.CodeType):
        return _describe_code(value)
    if isinstance(value, tuple):
        return tuple(map(_describe_constant, value))
    if isinstance(value, frozenset):  # of strings, in an order that differs between processes
        return ("frozenset", *sorted(repr(_describe_constant(v)) for v in value))
    return repr(value)


class MutationGuard:
    """A mutation guard: checks without another walk that mods are as they were at their walk.

    Everything that the walk went through must be the same object, and no tensor may have changed.
    """

    def __init__(self, capture_key: CaptureKey, mods: tuple[object, ...], forget: Callable[[weakref.ref[object]], object]):
        """Record the links, sizes and tensors of a walk.

        `forget` is called when one of the mods dies. Raises TypeError for a mod that cannot be referred to weakly.
        """
        self.mods = tuple((i, weakref.ref(m, forget)) for i, m in enumerate(mods) if m is not None)
        self.absent = tuple(i for i, m in enumerate(mods) if m is None)
        # ids are valid: the capture key keeps holders alive
        place_of = {id(m): i for i, m in enumerate(mods) if m is not None}
        links, links_of_mods, functions = [], [], defaultdict[int, dict[object, object]](dict)
        for link in capture_key.links:
            get, holder, name, value = link
            place = place_of.get(id(holder))
            if place is None:
                links.append(link)
            elif get is getattr and name in _OF_FUNCTIONS and type(holder) is types.FunctionType:
                functions[place][name] = value
            else:
                links_of_mods.append((get, place, name, value))
        self.links, self.links_of_mods = tuple(links), tuple(links_of_mods)  # these must not keep the mods alive
        self.functions = tuple(
            [(place, of["__code__"], of["__defaults__"], of["__kwdefaults__"], of["__dict__"]) for place, of in functions.items()]
        )
        self.sizes = tuple([size for size in capture_key.sizes if id(size[0]) not in place_of])
        self.lengths = tuple([(place_of[id(container)], size) for container, size in capture_key.sizes if id(container) in place_of])
        tensors = [t for t in capture_key.tensors if id(t) not in place_of]
        self.tensors = tuple([(t, state_of(t)) for t in tensors])
        self.learned = tuple([(t, t.requires_grad) for t in tensors])
        self.memory = tuple(map(memory_of, tensors))  # held with their states
        self.states = tuple([(i, state_of(m), memory_of(m), m.requires_grad) for i, m in enumerate(mods) if isinstance(m, torch.Tensor)])

    @staticmethod
    def possible(capture_key: CaptureKey, mods: tuple[object, ...]) -> bool:
        """Return True if a guard can hold for these mods.

        A bound method is a new object on each access, and inference tensors do not count writes.
        """
        steady = not any(isinstance(m, types.MethodType) for m in mods)
        return capture_key.comparable and steady and not any(t.is_inference() or t.is_meta for t in capture_key.tensors)

    def holds(self, *mods: Any) -> bool:
        try:
            for i, ref in self.mods:
                if ref() is not mods[i]:
                    return False
            for i in self.absent:
                if mods[i] is not None:
                    return False
            for i, state, _, learned in self.states:
                if state_of(mods[i]) != state or mods[i].requires_grad != learned:
                    return False
            for i, code, defaults, named, attributes in self.functions:
                mod = mods[i]
                if mod.__code__ is not code or mod.__defaults__ is not defaults or mod.__kwdefaults__ is not named:
                    return False
                if mod.__dict__ is not attributes:
                    return False
            for i, size in self.lengths:
                if len(mods[i]) != size:
                    return False
            for get, i, key, value in self.links_of_mods:
                if get(mods[i], key) is not value:
                    return False
            for container, size in self.sizes:
                if len(container) != size:
                    return False
            for get, holder, key, value in self.links:
                if get(holder, key) is not value:
                    return False
            for t, learned in self.learned:
                if t.requires_grad != learned:
                    return False
            return are_unchanged(self.tensors)
        except Exception:  # an entry or an attribute is gone; a user's own container then raises what it likes
            return False


__all__ = ["CaptureKey", "MutationGuard", "Path", "follow", "make_capture_key"]
