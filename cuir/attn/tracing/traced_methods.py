"""Methods of captured objects that call `isinstance` or `type`, traced with answers for proxies.

The copy of such an object gets a subclass of its own. Functions are traced in trace.py; the answers are in concrete_answers.py
and proxy.py.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Callable

from ...caching import memoize
from ...text.diagnostics import CuirError
from ...text.user_code import function_span

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


__all__ = ["class_of", "globals_read", "with_traced_methods"]
