"""The tables of operations that a mod may use, by their names in PyTorch and Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

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


__all__ = ["FUNCTIONS", "HANDLERS", "function", "handles", "words"]
