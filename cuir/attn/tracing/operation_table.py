"""The tables of operations that a mod may use, by their names in PyTorch and Python.

An operation that PyTorch lets users spell in several ways, as function or method, has one canonical order of arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import TypeVar

import torch

F = TypeVar("F", bound=Callable[..., object])
HANDLERS: dict[str, Callable[..., object]] = {}  # of numbers
FUNCTIONS: dict[str, Callable[..., object]] = {}  # of tensors with dims


def handles(*names: str) -> Callable[[F], F]:
    """Enter an operation of numbers under its names."""

    def enter(handler: F) -> F:
        HANDLERS.update(dict.fromkeys(names, handler))
        return handler

    return enter


def function(*names: str) -> Callable[[F], F]:
    """Enter a function of PyTorch under its names; its parameters are PyTorch's."""

    def enter(f: F) -> F:
        FUNCTIONS.update(dict.fromkeys(names, f))
        return f

    return enter


def words() -> list[str]:
    """Return one name for each supported operation, without operations that have a sign in Python."""
    signs = {"truediv", "floordiv", "mod", "and", "or", "xor", "lshift", "rshift", "invert", "pos", "eq", "ne", "lt", "le", "gt", "ge", "add", "sub", "mul", "neg", "pow", "float", "int", "bool"}  # fmt: skip
    first: dict[Callable[..., object], str] = {}
    for name, handler in HANDLERS.items():
        first.setdefault(handler, name)
    return sorted(set(first.values()) - signs)


_CHOICE = torch.Tensor.where.__name__
_NAMED = {  # the names of operands of torch's functions
    _CHOICE: ("condition", "input", "other"),
    "pow": ("input", "exponent"),
    "searchsorted": ("sorted_sequence", "input"),
    "squeeze": ("input", "dim"),
    "permute": ("input", "dims"),
    "flip": ("input", "dims"),
    "expand": ("input", "size"),
    "broadcast_to": ("input", "size"),
    "reshape": ("input", "shape"),
    "view": ("input", "size"),
}

_SYNONYMS = {"axis": "dim", "keepdims": "keepdim"}  # NumPy's names, which PyTorch takes too
_PREFIXES = ("special_", "linalg_")
# no dims are all dims to these
_ALL_OF_NONE = ("sum", "mean", "amax", "amin", "count_nonzero", "norm", "linalg_vector_norm")
_OPTIONS = ("out", "dtype")  # functions written in Python pass these on as None


def by_position(name: str, args: tuple[object, ...], kwargs: Mapping[str, object]) -> tuple[tuple[object, ...], Mapping[str, object]]:
    """Return operands given by name at their positions, and dims by the names of torch's functions.

    Options that have no effect are dropped.
    """
    if kwargs:
        kwargs = {_SYNONYMS.get(n, n): v for n, v in kwargs.items() if not (v is None and n in _OPTIONS)}
    names = _NAMED.get(name, ("input", "other"))
    if name in _ALL_OF_NONE and any(isinstance(d, (tuple, list)) and not d for d in (kwargs.get("dim"), *args[1:2])):
        args, kwargs = args[:1], {**kwargs, "dim": None}
    while len(args) < len(names) and names[len(args)] in kwargs:
        args, kwargs = (*args, kwargs[names[len(args)]]), {n: v for n, v in kwargs.items() if n != names[len(args)]}
    return args, kwargs


def in_table(name: str, table: Container[str]) -> str:
    """Return a table's name of an operation that torch also has in a namespace.

    Examples are `special_expm1` and `linalg_matmul`.
    """
    if name in table:
        return name
    bare = next((name.removeprefix(p) for p in _PREFIXES if name.startswith(p)), name)
    return bare if bare in table else name


def of_method(name: str, args: tuple[object, ...], kwargs: Mapping[str, object]) -> tuple[tuple[object, ...], Mapping[str, object]]:
    """Return the arguments of a tensor's method in the order of the function of its name.

    x.where(condition, y) is torch.where(condition, x, y); no other method has another order.
    """
    operands = {**dict(zip(("condition", "other"), args[1:])), **kwargs}
    return ((operands["condition"], args[0], operands["other"]), {}) if name == _CHOICE and len(operands) == 2 else (args, kwargs)


def of_function(
    func: Callable[..., object], args: tuple[object, ...], kwargs: Mapping[str, object]
) -> tuple[str, tuple[object, ...], Mapping[str, object]]:
    """Return the name and the arguments of a function of PyTorch that was called with proxies."""
    name = getattr(func, "__name__", str(func))
    if func is torch.embedding:  # which takes the table first
        args = (*args[1::-1], *args[2:])
    return name, *(of_method(name, args, kwargs) if func is torch.Tensor.where else (args, kwargs))


__all__ = ["FUNCTIONS", "HANDLERS", "by_position", "function", "handles", "in_table", "of_function", "of_method", "words"]
