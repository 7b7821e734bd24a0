"""Members of a user's objects, and the classes that they show to the code of a mod.

Whatever goes through these objects asks the `list_` functions what comes next: capture keys and their guards, tracing,
copies of mods, and searches for numbers or functions. Attributes stand in `__dict__` and in slots. Methods that call `isinstance` or `type` are traced with answers for
proxies: a stand-in shows the class of the value it imitates.
"""

from __future__ import annotations

import builtins
import dis
import functools
import operator
import types
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import UnionType
from typing import NamedTuple

import torch

from ...caching import memoize
from ...text.diagnostics import CuirError
from ...text.source import function_span
from .concrete_answers import KINDS
from .proxy import Proxy, Rows, TensorProxy

EMPTY = object()  # the value of a slot that was never set


Path = tuple[tuple[str, str], ...]  # steps from an object to what it leads to
# a guard, a plain tuple, as each call with new mods makes many: `get(holder, key) is value` while nothing was rebound
Link = tuple[Callable[..., object], object, object, object]


class Member(NamedTuple):
    """Return the member of an object under a name, or EMPTY.

    Attributes:
        name: of the variable, parameter, attribute, entry or index.
        steps: the way to it from the object.
        link: its guard, see Link.
    """

    name: str
    steps: Path
    link: Link

    @property
    def value(self) -> object:
        return self.link[3]


def list_cells(function: types.FunctionType) -> list[Member]:
    """List the variables that a function closes over; one that is not bound yet is EMPTY."""
    names, cells = function.__code__.co_freevars, function.__closure__ or ()
    return [Member(n, (("cell", str(i)),), (_contents, c, None, _contents(c, None))) for i, (n, c) in enumerate(zip(names, cells))]


def list_globals(function: types.FunctionType) -> list[Member]:
    """List the globals that a function or a function inside it reads; one that its module lacks is EMPTY."""
    namespace = function.__globals__
    return [Member(n, (("global", n),), (_entry, namespace, n, namespace.get(n, EMPTY))) for n in sort_globals(function.__code__)]


def list_defaults(function: types.FunctionType) -> list[Member]:
    """List the defaults of a function's parameters."""
    code, defaults, keywords = function.__code__, function.__defaults__ or (), function.__kwdefaults__ or {}
    names = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    positional, by_name = ("attribute", "__defaults__"), ("attribute", "__kwdefaults__")
    return [
        Member(n, (positional, ("item", str(i))), (operator.getitem, defaults, i, d)) for i, (n, d) in enumerate(zip(names, defaults))
    ] + [Member(n, (by_name, ("key", n)), (_entry, keywords, n, d)) for n, d in keywords.items()]


def list_attributes(value: object) -> list[Member]:
    """List the entries of `__dict__`, then the slots; a slot that was never set is EMPTY."""
    attributes = attributes_of(value)
    entries = attributes if isinstance(attributes, dict) else {}
    return [Member(str(n), (("attribute", n),), (_entry, entries, n, v)) for n, v in entries.items()] + [
        Member(n, (("attribute", n),), (slot_of, value, n, slot_of(value, n))) for n in slot_names(type(value))
    ]


def list_items(container: Sequence[object] | deque[object] | Mapping[object, object]) -> list[Member]:
    """List the items of a sequence or the entries of a mapping, then what a defaultdict makes of absent keys."""
    if not isinstance(container, Mapping):
        return [Member(str(i), (("item", str(i)),), (operator.getitem, container, i, v)) for i, v in enumerate(container)]
    # the key itself, by which capture_keys.follow takes the entry
    members = [Member(str(k), (("key", k),), (_entry, container, k, v)) for k, v in container.items()]  # type: ignore[arg-type]
    if isinstance(container, defaultdict):
        members.append(Member("default_factory", (), (getattr, container, "default_factory", container.default_factory)))
    return members


def list_parts(value: functools.partial[object] | types.MethodType) -> list[Member]:
    """List what a partial or a bound method calls, and what it passes to it."""
    names = ("func", "args", "keywords") if isinstance(value, functools.partial) else ("__func__", "__self__")
    return [Member(n, (("attribute", n),), (getattr, value, n, getattr(value, n))) for n in names]


def list_members(value: object) -> list[Member]:
    """List all that an object holds; nothing for a class or a module, whose contents count by the names that are read."""
    if isinstance(value, (types.ModuleType, type, torch.Tensor, str, bytes)):
        return []
    if isinstance(value, types.FunctionType):
        return [*list_cells(value), *list_defaults(value), *list_globals(value), *list_attributes(value)]
    members = list_items(value) if isinstance(value, (list, tuple, deque, Mapping)) else []
    members += list_parts(value) if isinstance(value, (functools.partial, types.MethodType)) else []
    return members if isinstance(value, types.MethodType) else members + list_attributes(value)


def _contents(cell: types.CellType, key: None) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not bound yet
        return EMPTY


def _entry(mapping: Mapping[Hashable, object], key: Hashable) -> object:
    return mapping.get(key, EMPTY)


def slot_names(cls: type) -> list[str]:
    classes = [c for c in cls.__mro__ if "__slots__" in vars(c)]
    return [n for c in classes for n, member in vars(c).items() if isinstance(member, types.MemberDescriptorType)]


def slot_of(value: object, name: str) -> object:
    """Return a slot's value, or EMPTY if it was never set; the object's own `__getattr__` is not called."""
    try:
        return object.__getattribute__(value, name)
    except AttributeError:
        return EMPTY


def attributes_of(value: object) -> Mapping[str, object] | None:
    """Return `__dict__`, or None for an object that has none or whose class raises when asked for it."""
    try:
        return getattr(value, "__dict__", None)
    except Exception:  # the object's own `__getattribute__` may raise anything
        return None


def has_attributes(value: object) -> bool:
    """Return whether an object has attributes of its own, in `__dict__` or in slots."""
    return isinstance(attributes_of(value), dict) or any(slot_of(value, n) is not EMPTY for n in slot_names(type(value)))


TYPE_QUERIES = frozenset({"isinstance", "type"})
_FROM = "_cuir_traced_from"


def with_traced_methods(
    copy: object, traced: Callable[[types.FunctionType], Callable[..., object]], foreign: Callable[[types.FunctionType], bool]
) -> None:
    """Give a copied object a subclass of its class with traced methods.

    Args:
        traced: returns the stand-in of a function in the trace.
        foreign: says whether a function is of Python or PyTorch.

    Raises CuirError X120 where there can be no subclass.
    """
    cls, methods, functions = type(copy), dict[str, object](), dict[str, types.FunctionType]()
    metaclass: Callable[..., type] = type(cls)
    for base in reversed(cls.__mro__):
        for name, member in vars(base).items():
            function = _function(member)
            if function is not None and not foreign(function) and TYPE_QUERIES & globals_read(function.__code__):
                methods[name], functions[name] = _as(member, traced(function)), function
            else:
                methods.pop(name, None)
    if methods:
        try:
            subclass = metaclass(cls.__name__, (cls,), {**methods, "__slots__": (), "__module__": cls.__module__, _FROM: cls})
            object.__setattr__(copy, "__class__", subclass)
        except Exception as error:  # a class may forbid to be derived from, and an object to be of another one
            raise CuirError.of(
                "X120",
                f"methods of `{cls.__name__}` ask for classes ({', '.join(sorted(methods))}), and a class derived from it fails: {error}",
                function_span(functions[next(iter(methods))]),
                "ask in the mod itself, or in a function that it names",
            ) from error


def class_of(x: object) -> type:
    """Return the class of the user's object."""
    cls = type(x)
    original: type = vars(cls).get(_FROM, cls)
    return original


@memoize(4096)  # code may be made anew for each call
def globals_read(code: types.CodeType) -> frozenset[str]:
    """Return the global names that a function or a function inside it reads."""
    # NAME: in the body of a class
    names = {i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            names |= globals_read(const)
    return frozenset(names)


@memoize(4096)
def sort_globals(code: types.CodeType) -> tuple[str, ...]:
    return tuple(sorted(globals_read(code)))


def _function(member: object) -> types.FunctionType | None:
    inner = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
    return inner if isinstance(inner, types.FunctionType) else None


def _as(member: object, function: Callable[..., object]) -> object:
    if isinstance(member, property):
        return property(function, member.fset, member.fdel, member.__doc__)
    return type(member)(function) if isinstance(member, (staticmethod, classmethod)) else function


Classes = type | UnionType | tuple["Classes", ...]  # as `isinstance` takes them


def _kind(x: object) -> type | None:
    """Return the Python class that a traced stand-in imitates; None for other values."""
    if isinstance(x, Proxy):
        return KINDS[x.element] if x.number else torch.Tensor
    return x.kind if isinstance(x, TensorProxy) else torch.Tensor if isinstance(x, Rows) else None


def _isinstance(x: object, classes: Classes) -> bool:
    kind, classes = _kind(x), type if classes is _type else classes
    return isinstance(x, classes) if kind is None else issubclass(kind, classes)


def _type(*args: object, **keywords: object) -> type:
    return (_kind(args[0]) or class_of(args[0])) if len(args) == 1 else type(*args, **keywords)


BUILTINS = {**vars(builtins), "isinstance": _isinstance, "type": _type}  # the builtins of traced functions


__all__ = [
    "BUILTINS",
    "EMPTY",
    "Link",
    "Member",
    "Path",
    "attributes_of",
    "class_of",
    "globals_read",
    "has_attributes",
    "list_attributes",
    "list_cells",
    "list_defaults",
    "list_globals",
    "list_items",
    "list_members",
    "list_parts",
    "slot_names",
    "slot_of",
    "with_traced_methods",
]
