"""What each primitive is printed as, by its name; the functions stand in `primitives` and in the targets."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Sequence
from typing import Any

from xdsl.ir import Operation

from ...ops import OPERATORS, TABLE
from ...ops.traits import Traits
from ..ir.text import dialect
from .operators import TEXTS

Print = Callable[..., None]


class Printer:
    """Prints an operation. `batch`: the operations that follow in its block and are printed with it."""

    def __init__(self, function: Print, batch: Callable[[Any], Sequence[Operation]]):
        self.function, self.batch = function, batch

    def __call__(self, *args: Any) -> None:
        self.function(*args)


_PRINTERS: dict[str, Printer] = {}


def prints(*names: str, batch: Callable[[Any], Sequence[Operation]] = lambda op: [op]) -> Callable[[Print], Print]:
    """Register the printer of primitives; a second one is an error of ours."""

    def enter(function: Print) -> Print:
        for name in names:
            if name in _PRINTERS:
                raise ValueError(f"two printers for {name}")
            _PRINTERS[name] = Printer(function, batch)
        return function

    return enter


_ELEMENTS: dict[str, Callable[..., str]] = {}


def element_of(name: str) -> Callable[[Callable[..., str]], Callable[..., str]]:
    """Register the text of an element of an elementwise operation: of `Elements`, the operation and a place."""

    def enter(function: Callable[..., str]) -> Callable[..., str]:
        if name in _ELEMENTS:
            raise ValueError(f"two texts for {name}")
        _ELEMENTS[name] = function
        return function

    return enter


@functools.cache
def _all() -> dict[str, Printer]:
    from . import primitives

    for module in pkgutil.iter_modules(primitives.__path__):
        importlib.import_module(f"{primitives.__name__}.{module.name}")
    return _PRINTERS


def printer_of(name: str) -> Printer | None:
    return _all().get(name)


def element_text(name: str) -> Callable[..., str] | None:
    _all()
    return _ELEMENTS.get(name)


def _in_the_ir(of: Traits) -> bool:
    """Whether the IR holds it without a call: declarations, places, numbers that are known when it is built, indices that cost nothing."""
    return bool(of.makes or of.place or of.measures or of.index_of) or of.constant is not None


IN_THE_IR = tuple(name for name, op in {**TABLE, **OPERATORS}.items() if _in_the_ir(op.traits))


def text_or_printer(name: str) -> Callable[..., Any] | None:
    """The function that gives a primitive's text, if it has one."""
    printer = printer_of(name)
    return TEXTS.get(name) if printer is None else printer.function


def gaps() -> tuple[set[str], set[str]]:
    """Names of the table of primitives that are not printed, and printers of names that neither the table nor the IR has; both empty if all is well."""
    known = TABLE.keys() | OPERATORS.keys()
    printed = {*_all(), *TEXTS, *IN_THE_IR}
    own = {op.name for op in dialect().operations}
    return known - printed, {n for n in printed - known - own if n not in IN_THE_IR}
