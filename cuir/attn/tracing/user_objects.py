"""Objects of a user that a mod reads while it is traced: attributes, methods, and the classes that they show.

Attributes stand in `__dict__` and in slots. Methods that call `isinstance` or `type` are traced with answers for
proxies: a stand-in shows the class of the value it imitates.
"""

from __future__ import annotations

import builtins
import dis
import types
from collections.abc import Callable, Mapping
from types import UnionType

import torch

from ...caching import memoize
from ...text.diagnostics import CuirError
from ...text.source import function_span
from .concrete_answers import KINDS
from .proxy import Proxy, Rows, TensorProxy

EMPTY = object()  # the value of a slot that was never set


def slots_of(value: object) -> list[tuple[str, object]]:
    """Return the names and values of an object's slots, without those that were never set."""
    slots = ((n, slot_of(value, n)) for n in slot_names(type(value)))
    return [(n, v) for n, v in slots if v is not EMPTY]


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
    return isinstance(attributes_of(value), dict) or bool(slots_of(value))


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
    "attributes_of",
    "class_of",
    "globals_read",
    "has_attributes",
    "slot_names",
    "slot_of",
    "slots_of",
    "with_traced_methods",
]
