"""The walk through a mod: all that decides how it is traced, and what a launch passes. Owns what is looked at; what that is good for is mods.py's to say.

Of functions, containers and objects it visits all that they hold; of classes and modules of the user's what goes by a name that some code on the way reads,
as they hold much else.
"""

from __future__ import annotations

import dis
import functools
import operator
import re
import sys
import types
from collections import deque, namedtuple
from collections.abc import Callable, Hashable, Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePath
from typing import Any, cast

import numpy as np
import torch

from ..transfer.trace import foreign, foreign_file, globals_read, slots_of

Path = tuple[tuple[str, str], ...]
Link = tuple[Callable[[Any, Any], Any], Any, Any, Any]


def _contents(cell: types.CellType, key: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not bound yet
        return _UNBOUND


def _entry(known: Mapping[Any, Any], key: Any) -> Any:
    return known.get(key, _UNBOUND)


_UNBOUND = object()
# fmt: off
_EVERY = frozenset({  # what code may read any attribute with
    "getattr", "hasattr", "vars", "dir", "attrgetter", "methodcaller", "__dict__", "__mro__", "getmembers", "getattr_static", "eval", "exec",
})
_NEVER = frozenset(f"__{n}__" for n in (  # functions of a class that reading and calling an object does not run
    "class_getitem", "copy", "deepcopy", "del", "delattr", "dir", "format", "getnewargs", "getstate", "init", "init_subclass", "new", "post_init", "reduce",
    "reduce_ex", "repr", "set", "set_name", "setattr", "setstate", "sizeof", "str", "subclasshook",
))
_OF_CLASSES = frozenset(f"__{n}__" for n in ("dict", "weakref", "doc", "module", "qualname", "name", "annotations", "mro", "class"))
_UNCHANGING = (
    complex, range, type(...), type(NotImplemented), np.generic, np.dtype, np.ufunc, torch.dtype, torch.device, torch.layout, torch.memory_format, torch.finfo,
    torch.iinfo, Fraction, Decimal, PurePath, re.Pattern, types.CodeType, types.GenericAlias, types.UnionType, types.WrapperDescriptorType,
    types.MethodDescriptorType, types.MemberDescriptorType, types.GetSetDescriptorType, types.ClassMethodDescriptorType, type(vars(namedtuple("Field", "x"))["x"]),
)
_HOOKS = frozenset({"__getattr__", "__getattribute__"})
# fmt: on


class Walk:
    """Visits what the tracer captures, and what else decides how a mod is traced."""

    def __init__(self) -> None:
        self.values: list[Hashable] = []
        self.tensors: list[torch.Tensor] = []
        self.seen: dict[int, int] = {}  # functions and objects on the way, by id: they may hold themselves
        self.links: list[Link] = []
        self.sizes: list[tuple[Any, int]] = []
        self.places: list[tuple[str, Path, Any]] = []
        self.known = True
        self.names: set[str] = set()  # that the code on the way reads, of whatever
        self.holders: dict[int, tuple[Any, Path]] = {}  # classes and modules, by id
        self.called: set[int] = set()  # those of the classes that code holds as such: it may make objects of them

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
        if isinstance(value, (list, deque, Mapping)) and id(value) in self.seen:
            return "again", self.seen[id(value)]
        if isinstance(value, (set, frozenset)) and all(isinstance(v, (str, int)) for v in value):
            self.sizes.append((value, len(value)))
            self.links += [(operator.contains, value, v, True) for v in value]
            return type(value), *sorted(map(repr, value))
        if isinstance(value, (list, tuple, deque)):
            self.container(value, path)
            if not isinstance(value, tuple):
                self.links += [(operator.getitem, value, i, v) for i, v in enumerate(value)]
            items = tuple(self.visit(v, (*path, ("item", str(i)))) for i, v in enumerate(value))
            return type(value), *items, *self.beside(value, path)
        if isinstance(value, Mapping):
            self.container(value, path)
            entries = tuple((str(k), self.linked(_entry, value, k, v, (*path, ("key", k)))) for k, v in value.items())
            return type(value), *entries, *self.beside(value, path)
        if isinstance(value, (types.ModuleType, type)):
            self.holder(value, path)
            if isinstance(value, type):
                self.called.add(id(value))
            return value
        if isinstance(value, (types.BuiltinFunctionType, types.MethodWrapperType)):
            of = value.__self__
            bound = of is not None and not isinstance(of, (types.ModuleType, type))
            return ("bound", value.__name__, self.visit(of, (*path, ("attribute", "__self__")))) if bound else value
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
        self.names |= attributes_read(code)
        self.known = self.known and not reads_elsewhere(code)
        own = value.__dict__
        if not own:
            self.sizes.append((own, 0))
            return "function", code, cells, defaults, *read
        self.sizes.append((own, len(own)))
        more = tuple((n, self.linked(_entry, own, n, v, (*path, ("attribute", n)))) for n, v in own.items())
        return "function", code, cells, defaults, more, *read

    def cell(self, cell: types.CellType, path: Path) -> Hashable:
        value = _contents(cell, None)
        if value is _UNBOUND:
            self.links.append((_contents, cell, None, value))
            return "empty"
        return self.linked(_contents, cell, None, value, path)

    def thing(self, value: Any, path: Path) -> Hashable:
        if isinstance(value, (operator.attrgetter, operator.methodcaller)):
            self.names |= _EVERY
        beside, kind = self.beside(value, path), cast(Hashable, type(value))
        if beside:
            self.places.append(("object", path, value))
            return "object", kind, *beside
        try:
            hash(value)
        except TypeError:
            self.known = False
            return "unknown", kind
        if type(value) is not object and not isinstance(value, _UNCHANGING):
            self.known = (
                False  # what it leads to, or gives, may be something else tomorrow: a weak reference, a context variable, an iterator
            )
        self.places.append(("object", path, value))
        return kind, value

    def beside(self, value: Any, path: Path) -> tuple[Hashable, ...]:
        """Attributes and slots of an object, and those of its class for later; nothing for an object that has none."""
        attributes = getattr(value, "__dict__", None)
        slots = [] if attributes is None and foreign_class(type(value)) else slots_of(value)
        if attributes is None and not slots:
            if not foreign_class(type(value)):
                self.holder(type(value), (*path, ("attribute", "__class__")))
            return ()
        found: list[Hashable] = []
        if isinstance(attributes, dict):
            self.links.append((getattr, value, "__dict__", attributes))
            self.sizes.append((attributes, len(attributes)))
            found += [(str(n), self.linked(_entry, attributes, n, v, (*path, ("attribute", n)))) for n, v in attributes.items()]
        found += [(n, self.linked(getattr, value, n, v, (*path, ("attribute", n)))) for n, v in slots]
        self.links.append((getattr, value, "__class__", type(value)))
        self.holder(type(value), (*path, ("attribute", "__class__")))
        return (tuple(found),)

    # ---- classes and modules
    def holder(self, value: Any, path: Path) -> None:
        foreign_one = foreign_class(value) if isinstance(value, type) else foreign_module(value)
        if not foreign_one:
            self.holders.setdefault(id(value), (value, path))
        if isinstance(value, type) and not foreign_class(type(value)):
            self.holder(type(value), (*path, ("attribute", "__class__")))

    def members(self) -> Iterator[Hashable]:
        """What the classes and modules on the way hold under names that are read, until no code is found that reads another one."""
        done: set[tuple[int, str]] = set()
        before = -1
        while len(done) != before:
            before = len(done)
            for at, (key, (value, path)) in enumerate(list(self.holders.items())):
                for i, one in enumerate(value.__mro__ if isinstance(value, type) else (value,)):
                    if isinstance(one, type) and foreign_class(one):
                        continue
                    known = vars(one)
                    for name in sorted(self.read_of(one, known, key in self.called)):
                        if (id(one), name) in done:
                            continue
                        done.add((id(one), name))
                        self.links.append((_entry, known, name, known.get(name, _UNBOUND)))
                        if name in known:
                            nearest = not any(name in vars(nearer) for nearer in value.__mro__[:i]) if i else True
                            way = path if nearest else (*path, ("attribute", "__mro__"), ("item", str(i)))
                            yield at, i, name, self.member(known[name], (*way, ("attribute", name)))
        if self.names & _EVERY:
            holders = {
                id(one): one for value, _ in self.holders.values() for one in (value.__mro__ if isinstance(value, type) else (value,))
            }
            self.sizes += [(vars(one), len(vars(one))) for one in holders.values()]

    def read_of(self, holder: Any, known: Mapping[str, Any], called: bool) -> set[str]:
        """Names of a class or a module that the code on the way may read, those among them that are not there now too. called: objects may be made of it."""
        names = set(self.names)
        if names & _EVERY:
            names |= {n for n in known if not n.startswith("__")}
        if isinstance(holder, type):  # whose functions operators are
            functions = {n for n, v in known.items() if n[:2] == n[-2:] == "__" and isinstance(v, types.FunctionType)}
            names |= _HOOKS | (functions if called else functions - _NEVER)
        return names - _OF_CLASSES

    def member(self, value: Any, path: Path) -> Hashable:
        """What stands in a class under a name."""
        if isinstance(value, (staticmethod, classmethod)):
            return type(value), self.visit(value.__func__, path if isinstance(value, staticmethod) else (*path, ("attribute", "__func__")))
        if isinstance(value, property):
            return property, *(self.visit(value.fget, (*path, ("attribute", "fget"))),)
        if isinstance(value, functools.cached_property):
            return "cached", self.visit(value.func, (*path, ("attribute", "func")))
        if isinstance(
            value, (types.MemberDescriptorType, types.GetSetDescriptorType, types.WrapperDescriptorType, types.MethodDescriptorType)
        ):
            return type(value).__name__
        return self.visit(value, path)


def foreign_class(cls: type) -> bool:
    """A class of Python, PyTorch or NumPy."""
    module = sys.modules.get(cls.__module__)
    return cls.__module__ == "builtins" or (module is not None and foreign_module(module))


def foreign_module(module: types.ModuleType) -> bool:
    name = module.__dict__.get("__file__")
    if name is None:  # built in, or made by hand
        return module.__name__ in sys.builtin_module_names
    return foreign_file(name)


@functools.cache
def reads_elsewhere(code: types.CodeType) -> bool:
    """Whether a function, or one inside of it, reads what the walk cannot know: a module of the user's that it imports itself, or globals under a computed name."""
    named = {"globals", "locals", "__import__", "import_module"} & set(code.co_names)
    for i in dis.get_instructions(code):
        if i.opname == "IMPORT_NAME":
            module = sys.modules.get(i.argval)
            named |= {i.argval} if module is None or not foreign_module(module) else set()
    return bool(named) or any(reads_elsewhere(c) for c in code.co_consts if isinstance(c, types.CodeType))


@functools.cache
def attributes_read(code: types.CodeType) -> frozenset[str]:
    """Names of attributes that a function, or one inside of it, reads."""
    found = _EVERY & set(code.co_names)
    for i in dis.get_instructions(code):
        if "ATTR" in i.opname or "METHOD" in i.opname:
            found |= {i.argval}
        elif i.opname == "MATCH_CLASS":
            found |= _EVERY
    return found.union(*(attributes_read(c) for c in code.co_consts if isinstance(c, types.CodeType)))


@functools.cache
def _sorted_globals(code: types.CodeType) -> tuple[str, ...]:
    return tuple(sorted(globals_read(code)))


__all__ = ["Link", "Path", "Walk"]
