"""What each primitive is printed as, by its name. Owns no printer: those that every card prints alike stand in `primitives`, the others in the targets."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from xdsl.ir import Operation

from ...ops import OPERATORS, TABLE
from ...ops.traits import Traits
from .operators import TEXTS

Print = Callable[..., None]
F = TypeVar("F", bound=Callable[..., Any])


class Printer:
    """Prints an operation. `batch`: the operations that follow in its block and are printed with it."""

    def __init__(self, function: Print, batch: Callable[[Any], Sequence[Operation]]):
        self.function, self.batch = function, batch

    def __call__(self, *args: Any) -> None:
        self.function(*args)


class Printers:
    """What primitives are printed as, by their names: those that every card prints alike, or those of one target. A second printer of a name is an error of ours.

    printers: statements and tiles. texts: C++ of operations on numbers. elements: of elementwise operations of the machine. choices: instructions that a card has
    for a step of another printer, which without them does it element by element.
    """

    def __init__(self) -> None:
        self.printers: dict[str, Printer] = {}
        self.texts: dict[str, Callable[..., str]] = {}
        self.elements: dict[str, Callable[..., str]] = {}
        self.choices: dict[str, Callable[..., Any]] = {}

    @classmethod
    def joined(cls, *families: Printers) -> Printers:
        """Those of several files as one."""
        whole = cls()
        for family in families:
            for table, entries in vars(family).items():
                for name, function in entries.items():
                    _enter(getattr(whole, table), name, function)
        return whole

    def prints(self, *names: str, batch: Callable[[Any], Sequence[Operation]] = lambda op: [op]) -> Callable[[Print], Print]:
        def enter(function: Print) -> Print:
            for name in names:
                _enter(self.printers, name, Printer(function, batch))
            return function

        return enter

    def text_of(self, name: str) -> Callable[[F], F]:
        return functools.partial(_enter, self.texts, name)

    def element_of(self, name: str) -> Callable[[F], F]:
        """The text of an element of an elementwise operation: of `Elements`, the operation and a place."""
        return functools.partial(_enter, self.elements, name)

    def choice(self, name: str) -> Callable[[F], F]:
        return functools.partial(_enter, self.choices, name)


def _enter(table: dict[str, Any], name: str, function: F) -> F:
    if name in table:
        raise ValueError(f"two printers for {name}")
    table[name] = function
    return function


COMMON = Printers()
COMMON.texts = TEXTS
prints, element_of = COMMON.prints, COMMON.element_of


@functools.cache
def common() -> Printers:
    """What every card prints alike."""
    from . import primitives

    for module in pkgutil.iter_modules(primitives.__path__):
        importlib.import_module(f"{primitives.__name__}.{module.name}")
    return COMMON


def _in_the_ir(of: Traits) -> bool:
    """Whether the IR holds it without a call: declarations, places, numbers that are known when it is built, indices that cost nothing."""
    return bool(of.makes or of.place or of.measures or of.index_of) or of.constant is not None


IN_THE_IR = tuple(name for name, op in {**TABLE, **OPERATORS}.items() if _in_the_ir(op.traits))
