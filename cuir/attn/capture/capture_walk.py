"""The walk through a mod: everything that decides how it is traced, and launch arguments.

Of functions, containers and objects it visits all contents; of the user's classes and modules, which hold much else, it
visits what goes by a name that some code on the way reads. capture_keys.py turns the result into a capture key.
"""

from __future__ import annotations

import builtins
import dis
import enum
import functools
import operator
import re
import struct
import sys
import types
import weakref
from collections import deque, namedtuple
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sized
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePath
from typing import TypeVar

import numpy as np
import torch

from ...caching import memoize
from ..tracing.proxy import Proxy, Rows
from ..tracing.trace import foreign, foreign_file
from ..tracing.user_objects import (
    EMPTY,
    Link,
    Member,
    Path,
    attributes_of,
    list_attributes,
    list_cells,
    list_globals,
    list_items,
    list_parts,
    slot_names,
)

FUNCTIONS = 1000  # of which a mod is compared with another one
CapturedPlace = tuple[str, Path, object]  # (kind, path, value): a plain tuple, as each call with new mods makes many
Holder = type | types.ModuleType
K = TypeVar("K")


def _entry(mapping: Mapping[K, object], key: K) -> object:
    return mapping.get(key, EMPTY)


def _in_order(container: Iterable[object], previous: tuple[object, ...]) -> bool:
    """Return True if a container holds the same objects in the same order, of as many as it held before."""
    return all(map(operator.is_, container, previous))


def _has_members(cls: type, count: int) -> bool:
    """Return True if a class has as many members as before, without the one that copying an object adds."""
    return len(cls.__dict__) - (_COPIED in cls.__dict__) == count


_COPIED = "__slotnames__"
_BUILTINS = vars(builtins)
_DEFAULTS, _KEYWORDS = (("attribute", "__defaults__"),), (("attribute", "__kwdefaults__"),)


def _type_of(value: object, key: None) -> type:
    return type(value)


# fmt: off
_REFLECTION_NAMES = frozenset({  # names by which code may read any attribute
    "getattr", "hasattr", "vars", "dir", "attrgetter", "methodcaller", "__dict__", "__mro__", "getmembers", "getattr_static", "eval", "exec",
    "__getattribute__", "__getattr__", "__get__", "mro", "__bases__",
})
_OPAQUE_READS = frozenset({  # names by which code may read anything, or values that change unnoticed
    "globals", "locals", "eval", "exec", "open", "input", "__import__", "import_module", "modules", "_getframe", "currentframe", "get_objects", "get_referrers",
    "__subclasses__", "environ", "getenv", "get_default_dtype", "is_grad_enabled", "is_inference_mode_enabled", "is_autocast_enabled",
})
_NONDETERMINISTIC_MODULES = frozenset({"os", "posix", "nt", "sys", "gc", "time", "threading", "random", "_random", "secrets", "uuid", "inspect", "io", "_io", "importlib"})
_MAKING = ("__init__", "__new__", "__post_init__")
_COPYING = ("__copy__", "__deepcopy__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__replace__")
_WRITING = ("__str__", "__repr__", "__format__")
_IMPLICIT_CALLS: dict[str, tuple[str, ...]] = {  # functions of a class that these names may run
    "type": _MAKING, "__class__": _MAKING, "replace": (*_MAKING, *_COPYING), "copy": (*_MAKING, *_COPYING), "deepcopy": (*_MAKING, *_COPYING),
    "str": _WRITING, "repr": _WRITING, "format": _WRITING, "print": _WRITING, "setattr": ("__setattr__", "__set__"), "delattr": ("__delattr__", "__delete__"),
    "dir": ("__dir__",),
}
_UNRUN_DUNDERS = frozenset(f"__{n}__" for n in (  # functions of a class that reading and calling an object does not run
    "copy", "deepcopy", "del", "delattr", "dir", "format", "getnewargs", "getstate", "init", "init_subclass", "new", "post_init", "reduce",
    "reduce_ex", "repr", "set", "set_name", "setattr", "setstate", "sizeof", "str", "subclasshook",
))
_OF_CLASSES = frozenset(f"__{n}__" for n in ("dict", "weakref", "doc", "module", "qualname", "name", "annotations", "mro", "class"))
_UNCHANGING = (
    complex, range, type(...), type(NotImplemented), np.generic, np.dtype, np.ufunc, torch.dtype, torch.device, torch.layout, torch.memory_format, torch.finfo,
    torch.iinfo, Fraction, Decimal, PurePath, re.Pattern, types.CodeType, types.GenericAlias, types.UnionType, types.WrapperDescriptorType,
    types.MethodDescriptorType, types.MemberDescriptorType, types.GetSetDescriptorType, types.ClassMethodDescriptorType, type(vars(namedtuple("Field", "x"))["x"]),
)
# objects that torch.compile tells apart by their classes alone
_OF_VALUE = (np.generic, Fraction, Decimal, PurePath, re.Pattern)
_HOOKS = frozenset({"__getattr__", "__getattribute__"})
_DISPATCHED = (type(np.sum), np.ufunc)  # functions of NumPy
_PLAIN = (bool, int, float, str, bytes, set, frozenset, type(None))
# fmt: on


class TooMuchError(Exception):
    """A mod leads to more functions than are compared."""


class Walk:
    """A visitor of captured values, and of everything else that decides how a mod is traced.

    Raises TooMuchError beyond FUNCTIONS functions, and RecursionError, as Python does.
    """

    def __init__(self) -> None:
        self.values: list[Hashable] = []
        self.tensors: list[torch.Tensor] = []
        self.visited: dict[int, int] = {}  # functions and objects on the way, by id: they may be cyclic
        self.links: list[Link] = []
        self.sizes: list[tuple[Sized, int]] = []
        self.places: list[CapturedPlace] = []
        self.comparable = True
        self.attributes: list[Mapping[str, object]] = []
        self.names: set[str] = set()  # names that the code on the way reads, of any object
        self.holders: dict[int, tuple[Holder, Path]] = {}  # classes and modules, by id
        # objects of a library's class: attributes that are read count
        self.of_library: list[tuple[object, Mapping[str, object], Path]] = []
        self.called: set[int] = set()  # ids of classes that code holds as values, and may instantiate
        self.functions = 0  # number of the user's functions that were visited

    def visit(self, value: object, path: Path) -> Hashable:
        if isinstance(value, (Proxy, Rows)):  # that a mod kept; the trace refuses it where it is used
            self.comparable = False
            return "unknown", type(value)
        if value is None or isinstance(value, (bool, str, bytes)):
            self.places.append(("constant", path, value))
            return type(value), value, *self.visit_subclass_state(value, path)
        if isinstance(value, torch.Tensor):
            return self.visit_tensor(value, path)
        if isinstance(value, (int, float)):
            self.places.append(("number", path, value))
            self.values.append(value.hex() if isinstance(value, float) else value)
            return type(value), int(value > 0) - int(value < 0), *self.visit_subclass_state(value, path)
        if isinstance(value, (weakref.WeakKeyDictionary, weakref.WeakValueDictionary, weakref.WeakSet)):
            self.comparable = False  # the walk must not keep its values alive
            return "unknown", type(value)
        if isinstance(value, (list, deque, Mapping)) and id(value) in self.visited:
            return "again", self.visited[id(value)]
        if isinstance(value, (set, frozenset)) and all(isinstance(v, (str, int)) for v in value):
            self.sizes.append((value, len(value)))
            self.links.append((_in_order, value, tuple(value), True))
            self.places.append(("members", path, tuple(value)))
            # its order decides what is first, but is another one in another process
            self.values.append(tuple(map(repr, value)))
            return type(value), *sorted(map(repr, value)), *self.visit_subclass_state(value, path)
        if isinstance(value, (list, tuple, deque)):
            self.record_container(value, path)
            visit = self.visit_unlinked if isinstance(value, tuple) else self.visit_member  # those of a tuple stay
            items = tuple([visit(m, path) for m in list_items(value)])
            return type(value), *items, *self.visit_instance_state(value, path)
        if isinstance(value, Mapping):
            self.record_container(value, path)
            if len(value) > 1:
                self.links.append((_in_order, value, tuple(value), True))
                if all(type(k) in (str, int) for k in value):
                    self.places.append(("order", path, tuple(value)))
            entries = tuple(
                [
                    (self.visit_key(m.link[2], path), self.visit_member(m, path)) if m.steps else self.visit_member(m, path)
                    for m in list_items(value)
                ]
            )
            return type(value), *entries, *self.visit_instance_state(value, path)
        if isinstance(value, (types.ModuleType, type)):
            self.record_holder(value, path)
            self.places.append(("same", path, value))
            if isinstance(value, type):
                self.called.add(id(value))
                self.names |= {value.__name__} & _REFLECTION_NAMES
            return value
        if isinstance(value, (types.BuiltinFunctionType, types.MethodWrapperType)):
            receiver = value.__self__
            bound = receiver is not None and not isinstance(receiver, (types.ModuleType, type))
            self.names |= {value.__name__} & _REFLECTION_NAMES
            self.comparable = self.comparable and value.__name__ not in _OPAQUE_READS and value.__module__ not in _NONDETERMINISTIC_MODULES
            self.places.append(("same", path, value))
            return ("bound", value.__name__, self.visit(receiver, (*path, ("attribute", "__self__")))) if bound else value
        if id(value) in self.visited:
            return "again", self.visited[id(value)]
        self.visited[id(value)] = len(self.visited)
        if isinstance(value, functools.partial):
            return "partial", *[self.visit_member(m, path) for m in list_parts(value)], *self.visit_instance_state(value, path)
        if isinstance(value, types.MethodType):
            return "method", *[self.visit_unlinked(m, path) for m in list_parts(value)]
        if isinstance(value, types.FunctionType):
            self.places.append(("function", path, value))
            if not foreign(value):
                return self.visit_function(value, path)
            self.comparable = self.comparable and value.__name__ not in _OPAQUE_READS and value.__module__ not in _NONDETERMINISTIC_MODULES
            return value
        return self.visit_object(value, path)

    def visit_member(self, member: Member, path: Path) -> Hashable:
        """Visit what an object holds, with a guard."""
        _, steps, link = member
        self.links.append(link)
        return "empty" if (value := link[3]) is EMPTY else self.visit(value, path + steps)

    def visit_unlinked(self, member: Member, path: Path) -> Hashable:
        """Visit what an object that cannot change holds."""
        return self.visit(member.link[3], path + member.steps)

    def visit_key(self, key: object, path: Path) -> Hashable:
        """Visit a key of a dictionary."""
        return (type(key), key) if type(key) in (str, int, bool, bytes, type(None)) else self.visit_unguarded(key, path)

    def visit_unguarded(self, value: object, path: Path) -> Hashable:
        """Visit a value without a path that torch.compile could follow."""
        count = len(self.places)
        structure = self.visit(value, path)
        del self.places[count:]
        return structure

    def visit_subclass_state(self, value: object, path: Path) -> tuple[Hashable, ...]:
        """Visit the attributes of a constant, number or set whose class is the user's subclass."""
        if type(value) in _PLAIN:
            return ()
        if id(value) in self.visited:
            return ("again", self.visited[id(value)])
        self.visited[id(value)] = len(self.visited)
        return self.visit_instance_state(value, path)

    def record_container(self, value: Sized, path: Path) -> None:
        self.visited[id(value)] = len(self.visited)
        self.sizes.append((value, len(value)))
        self.places.append(("length", path, len(value)))

    def visit_tensor(self, value: torch.Tensor, path: Path) -> Hashable:
        self.places.append(("tensor", path, value))
        for i, visited in enumerate(self.tensors):
            if visited is value:
                return "same", i
        self.tensors.append(value)
        self.values.append(tuple(value.shape))
        return "tensor", value.dtype, value.ndim

    def visit_function(self, value: types.FunctionType, path: Path) -> Hashable:
        self.functions += 1
        if self.functions > FUNCTIONS:
            raise TooMuchError
        code = value.__code__
        self.links += (
            (getattr, value, "__code__", code),
            (getattr, value, "__defaults__", value.__defaults__),
            (getattr, value, "__kwdefaults__", value.__kwdefaults__),
        )
        cells = tuple([self.visit_member(m, path) for m in list_cells(value)])
        defaults = tuple([self.visit(x, path + steps) for x, steps in ((value.__defaults__, _DEFAULTS), (value.__kwdefaults__, _KEYWORDS))])
        read: list[Hashable] = []
        for m in list_globals(value):
            if m.link[3] is not EMPTY:
                read.append((m.name, self.visit_member(m, path)))
                continue
            self.links.append(m.link)
            if m.name in _BUILTINS:
                self.links.append((_entry, _BUILTINS, m.name, _BUILTINS[m.name]))
                read.append((m.name, self.visit_unguarded(_BUILTINS[m.name], path)))
        self.names |= attributes_read(code)
        self.comparable = self.comparable and not reads_elsewhere(code)
        attributes = value.__dict__
        self.links.append((getattr, value, "__dict__", attributes))
        self.attributes.append(attributes)
        if not attributes:
            self.sizes.append((attributes, 0))
            return "function", code, cells, defaults, *read
        self.sizes.append((attributes, len(attributes)))
        more = tuple([(m.link[2], self.visit_member(m, path)) for m in list_attributes(value)])
        return "function", code, cells, defaults, more, *read

    def visit_object(self, value: object, path: Path) -> Hashable:
        if isinstance(value, (operator.attrgetter, operator.methodcaller)):
            self.names |= _REFLECTION_NAMES
        if isinstance(value, _DISPATCHED):
            self.places.append(("same", path, value))
            return value
        if _read_by_name(value):
            attributes = attributes_of(value)
            assert attributes is not None
            self.links += [(getattr, value, "__dict__", attributes), (_type_of, value, None, type(value))]
            self.attributes.append(attributes)
            self.of_library.append((value, attributes, path))
            self.places.append(("object", path, value))
            return "object", type(value), "by name"
        kind: type = type(value)
        contents = self.visit_instance_state(value, path)
        if contents:
            self.comparable = self.comparable and not _hides(kind)
            self.places.append(("object", path, value))
            return "object", kind, *contents
        try:
            hash(value)
        except Exception:  # the object's own `__hash__` may raise anything
            self.comparable = False
            return "unknown", kind
        if isinstance(value, types.WrapperDescriptorType):
            self.names |= {value.__name__} & _REFLECTION_NAMES
        if type(value) is not object and not isinstance(value, _UNCHANGING):
            self.comparable = False  # its value may change unnoticed: a weak reference, a context variable, an iterator
        self.places.append(("value" if isinstance(value, _OF_VALUE) else "object", path, value))
        return kind, value, repr(value) if isinstance(value, (np.generic, complex, Decimal)) else None  # -0.0

    def visit_instance_state(self, value: object, path: Path) -> tuple[Hashable, ...]:
        """Visit attributes and slots of an object, and record its class.

        Return nothing for an object without any.
        """
        attributes = attributes_of(value)
        if attributes is None and (foreign_class(type(value)) or not slot_names(type(value))):
            if not foreign_class(type(value)):
                self.record_holder(type(value), (*path, ("attribute", "__class__")))
            return ()
        if isinstance(attributes, dict):
            self.links.append((getattr, value, "__dict__", attributes))
            self.attributes.append(attributes)
            self.sizes.append((attributes, len(attributes)))
        members: list[Hashable] = []
        for m in list_attributes(value):
            if m.link[3] is EMPTY:
                self.links.append(m.link)
            else:
                members.append((m.name, self.visit_member(m, path)))
        self.links.append((_type_of, value, None, type(value)))
        self.record_holder(type(value), (*path, ("attribute", "__class__")))
        return (tuple(members),)

    # ---- classes and modules
    def record_holder(self, value: Holder, path: Path) -> None:
        if id(value) in self.holders:
            return
        if isinstance(value, types.ModuleType) or not foreign_class(value):
            self.holders[id(value)] = value, path
        if not foreign_class(type(value)):
            self.record_holder(type(value), (*path, ("attribute", "__class__")))

    def visit_members(self) -> Iterator[Hashable]:
        """Visit what classes and modules on the way hold under names that are read.

        This repeats until no code is found that reads another name.
        """
        visited: set[tuple[int, str]] = set()
        before = -1
        while len(visited) != before:
            before = len(visited)
            for at, (value, attributes, path) in enumerate(list(self.of_library)):
                every = self.names & _REFLECTION_NAMES or any(
                    hasattr(type(value), n) for n in self.names
                )  # its methods read what they like
                for name in sorted(n for n in (attributes if every else self.names) if (id(attributes), n) not in visited):
                    visited.add((id(attributes), name))
                    self.links.append((_entry, attributes, name, attributes.get(name, EMPTY)))
                    if name in attributes:
                        yield "object", at, name, self.visit(attributes[name], (*path, ("attribute", name)))
            for at, (key, (value, path)) in enumerate(list(self.holders.items())):
                if isinstance(value, types.ModuleType) and foreign_module(value):
                    yield from self.visit_library(value, path, visited)
                    continue
                holder_classes: tuple[Holder, ...] = value.__mro__ if isinstance(value, type) else (value,)
                for i, holder_class in enumerate(holder_classes):
                    if isinstance(holder_class, type) and foreign_class(holder_class):
                        continue
                    namespace = vars(holder_class)
                    if (id(holder_class), "") not in visited:
                        visited.add((id(holder_class), ""))
                        if isinstance(holder_class, type):  # may get an operator, or other bases
                            self.links.append((_has_members, holder_class, len(namespace) - (_COPIED in namespace), True))
                            self.links.append((getattr, holder_class, "__mro__", holder_class.__mro__))
                    for name in sorted(self.names_read_of(holder_class, namespace, key in self.called)):
                        if (id(holder_class), name) in visited:
                            continue
                        visited.add((id(holder_class), name))
                        self.links.append((_entry, namespace, name, namespace.get(name, EMPTY)))
                        if name in namespace:
                            yield at, i, name, self.visit_class_member(namespace[name], _way_to(value, path, i, name))
        if self.names & _REFLECTION_NAMES:
            self.links += [(_in_order, container, tuple(container), True) for container in self.attributes]
            self.sizes += [
                (vars(holder_class), len(vars(holder_class)))
                for holder_class, _ in self.holders.values()
                if not isinstance(holder_class, type) and not foreign_module(holder_class)
            ]

    def names_read_of(self, holder: Holder, namespace: Mapping[str, object], called: bool) -> set[str]:
        """Return names of a class or a module that the code on the way may read, absent ones too.

        `called` says that objects may be made of it.
        """
        names = set(self.names)
        if names & _REFLECTION_NAMES:
            names |= {n for n in namespace if not n.startswith("__")}
        if isinstance(holder, type):  # whose functions operators are
            code = {n for n, v in namespace.items() if callable(v) or hasattr(type(v), "__get__")}
            functions = {n for n in code if n[:2] == n[-2:] == "__"}
            names |= _HOOKS | (functions if called else functions - _UNRUN_DUNDERS)
            bases = [vars(c) for c in holder.__mro__ if c is not object and foreign_class(c)]
            # names that a library's own methods call: `forward` of a torch.nn.Module
            names |= {n for n in code - functions if any(n in of for of in bases)}
            if isinstance(holder, enum.EnumMeta):
                names.add("_member_map_")
        else:
            names.add("__getattr__")
        return names - _OF_CLASSES

    def visit_library(self, module: types.ModuleType, path: Path, visited: set[tuple[int, str]]) -> Iterator[Hashable]:
        """Visit the entries of a module of Python, PyTorch or NumPy under the names that mods read.

        A user may have replaced these entries.
        """
        namespace = vars(module)
        for name in sorted(n for n in self.names if n in namespace and (id(module), n) not in visited):
            visited.add((id(module), name))
            value = namespace[name]
            self.links.append((_entry, namespace, name, value))
            if value is not None and not isinstance(
                value, (types.ModuleType, type, types.FunctionType, types.BuiltinFunctionType, *_DISPATCHED, *_PLAIN, *_UNCHANGING)
            ):
                self.comparable = False
            else:
                yield module.__name__, name, self.visit_unguarded(value, (*path, ("attribute", name)))

    def visit_class_member(self, value: object, path: Path) -> Hashable:
        """Visit a member of a class."""
        if isinstance(value, (staticmethod, classmethod)):
            inner = self.visit(value.__func__, path if isinstance(value, staticmethod) else (*path, ("attribute", "__func__")))
            return (
                (type(value), inner, *self.visit_instance_state(value, path))
                if type(value) not in (staticmethod, classmethod)
                else (type(value), inner)
            )
        if isinstance(value, property):
            return property, self.visit(value.fget, (*path, ("attribute", "fget"))), *self.visit_instance_state(value, path)
        if isinstance(value, functools.cached_property):
            return (
                "cached",
                self.visit(value.func, (*path, ("attribute", "func"))),
                *(() if type(value) is functools.cached_property else self.visit_instance_state(value, path)),
            )
        if isinstance(
            value, (types.MemberDescriptorType, types.GetSetDescriptorType, types.WrapperDescriptorType, types.MethodDescriptorType)
        ):
            return type(value).__name__
        return self.visit(value, path)


def _way_to(holder: Holder, path: Path, i: int, name: str) -> Path:
    """Return the path of the entry `name` of a module, or of a class among a holder's bases.

    A property is taken from the dictionary of its class: only there does torch.compile guard it.

    Args:
        i: index of the class in the method resolution order.
    """
    of_base: Path = (*path, ("attribute", "__mro__"), ("item", str(i))) if i else path
    if isinstance(holder, type):
        if type(vars(holder.__mro__[i])[name]) is property:
            return (*of_base, ("attribute", "__dict__"), ("key", name))
        if not any(name in vars(nearer) for nearer in holder.__mro__[:i]):
            return (*path, ("attribute", name))
    return (*of_base, ("attribute", name))


def foreign_class(cls: type) -> bool:
    """Return True for a class of Python, PyTorch, NumPy or this package."""
    module = sys.modules.get(cls.__module__) if isinstance(cls.__module__, str) else None
    if module is None or not foreign_module(module):
        return False
    if not cls.__flags__ & _HEAP_TYPE_FLAG:
        return True
    resolved: object = module  # a class that is made anew, or by `exec`, may say that it is of `types` or `builtins`
    for part in cls.__qualname__.split("."):
        resolved = getattr(resolved, "__dict__", {}).get(part)
    return resolved is cls


def _read_by_name(value: object) -> bool:
    """Return True if the names in code tell which attributes are read of an object.

    The object is of a library's class, of which only methods that are called by name run.
    """
    cls = type(value)
    if isinstance(value, torch.nn.Module) or type(attributes_of(value)) is not dict or slot_names(cls) or not foreign_class(cls):
        return False
    return not any(
        callable(v) and n[:2] == n[-2:] == "__" and n not in _UNRUN_DUNDERS | _OF_CLASSES
        for c in cls.__mro__[:-1]
        for n, v in vars(c).items()
    )


_HEAP_TYPE_FLAG = 1 << 9  # Py_TPFLAGS_HEAPTYPE


def _hides(cls: type) -> bool:
    """Return True if objects of a class hold values outside of attributes and slots.

    functools.lru_cache does.
    """
    words = len(slot_names(cls)) + (cls.__weakrefoffset__ > 0) + (cls.__dictoffset__ > 0)
    return cls.__basicsize__ > object.__basicsize__ + words * struct.calcsize("P")


def foreign_module(module: types.ModuleType) -> bool:
    name = module.__dict__.get("__file__")
    if type(module).__module__ == "torch._ops":
        return True
    if name is None:  # built in, or made by hand
        return module.__name__ in sys.builtin_module_names
    return foreign_file(name)


@memoize(4096)  # code may be made anew for each call
def reads_elsewhere(code: types.CodeType) -> bool:
    """Return True if a function, or one nested in it, reads values that the walk cannot visit.

    Such values are a user's module that the function itself imports, or globals under a computed name.
    """
    named = _OPAQUE_READS & set(code.co_names)
    for i in dis.get_instructions(code):
        if i.opname == "IMPORT_NAME":
            module = sys.modules.get(i.argval)
            named |= {i.argval} if module is None or not foreign_module(module) else set()
    return bool(named) or any(reads_elsewhere(c) for c in code.co_consts if isinstance(c, types.CodeType))


@memoize(4096)
def attributes_read(code: types.CodeType) -> frozenset[str]:
    """Return the names of attributes that a function, or one inside of it, reads."""
    names = _REFLECTION_NAMES & set(code.co_names)
    names = names.union(*(_IMPLICIT_CALLS[n] for n in code.co_names if n in _IMPLICIT_CALLS))
    for i in dis.get_instructions(code):
        if "ATTR" in i.opname or "METHOD" in i.opname:
            names |= {i.argval}
        elif i.opname == "MATCH_CLASS":
            names |= _REFLECTION_NAMES
        elif "FORMAT_" in i.opname:  # an f-string
            names |= set(_WRITING)
    return names.union(*(attributes_read(c) for c in code.co_consts if isinstance(c, types.CodeType)))


__all__ = ["CapturedPlace", "Link", "Path", "Walk"]
