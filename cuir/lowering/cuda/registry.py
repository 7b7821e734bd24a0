"""Registries of printers, by the names of primitives.

Printers that every target shares stand in `primitives`, the others in the targets.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable
from typing import Any, TypeVar

from ...ops import OPERATORS, TABLE
from ...ops.traits import Traits
from .operator_text import TEXTS

Print = Callable[..., None]
F = TypeVar("F", bound=Callable[..., Any])


class Printers:
    """Printers by the names of primitives: those of every target, or those of one target.

    A second printer of a name is an internal error.

    Attributes:
        printers: For statements and tiles.
        texts: C++ expressions of operations on numbers.
        elements: C++ expressions of elementwise operations of the machine.
        codes: For operations with several ways, by the names of the step and of the way that was selected.
    """

    def __init__(self) -> None:
        self.printers: dict[str, Print] = {}
        self.texts: dict[str, Callable[..., str]] = {}
        self.elements: dict[str, Callable[..., str]] = {}
        self.codes: dict[str, Callable[..., Any]] = {}

    @classmethod
    def join(cls, *families: Printers) -> Printers:
        """Return one registry with the entries of several."""
        result = cls()
        for family in families:
            for table, entries in vars(family).items():
                for name, function in entries.items():
                    _register(getattr(result, table), name, function)
        return result

    def prints(self, *names: str) -> Callable[[Print], Print]:
        """Register the function that follows as the printer of these names."""

        def register(function: Print) -> Print:
            for name in names:
                _register(self.printers, name, function)
            return function

        return register

    def text_of(self, name: str) -> Callable[[F], F]:
        """Register the function that follows as the text of an operation on numbers."""
        return functools.partial(_register, self.texts, name)

    def element_of(self, name: str) -> Callable[[F], F]:
        """Register the function that follows as the text of an element of an elementwise operation.

        It takes `Elements`, the operation and a position.
        """
        return functools.partial(_register, self.elements, name)

    def code_of(self, step: str, way: str) -> Callable[[F], F]:
        """Register the function that follows as the code of a way to do a step (`select/ways.py`)."""
        return functools.partial(_register, self.codes, f"{step}: {way}")


def _register(table: dict[str, Any], name: str, function: F) -> F:
    if name in table:
        raise ValueError(f"two printers for {name}")
    table[name] = function
    return function


COMMON = Printers()
COMMON.texts = TEXTS
prints, element_of, code_of = COMMON.prints, COMMON.element_of, COMMON.code_of


@functools.cache
def load_common() -> Printers:
    """Return the printers that every target shares, once all their modules are imported."""
    from . import primitives

    for module in pkgutil.iter_modules(primitives.__path__):
        importlib.import_module(f"{primitives.__name__}.{module.name}")
    return COMMON


def _is_in_ir(traits: Traits) -> bool:
    """Return whether the IR holds an operation without a call.

    These are declarations, places, numbers that are known when the IR is built, and indices that cost nothing.
    """
    return bool(traits.makes or traits.place or traits.measures or traits.index_of) or traits.constant is not None


IN_THE_IR = tuple(name for name, op in {**TABLE, **OPERATORS}.items() if _is_in_ir(op.traits))
