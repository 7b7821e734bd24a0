"""Direct access to operands and results by name.

xDSL resolves a name anew at each read, and passes read nothing as often as these.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import TypeVar

from xdsl.ir import Operation

Op = TypeVar("Op", bound=type[Operation])


def all_operands(name: str) -> Callable[[Op], Op]:
    """Return a decorator that makes a name the tuple of all operands, for operations declared so."""

    def named(op: Op) -> Op:
        setattr(op, name, property(attrgetter("_operands")))  # `operands` is a view, made at each read
        return op

    return named


def one_result(op: Op) -> Op:
    """Make `result` the only result of an operation that is declared with one."""

    def result(self: Operation) -> object:
        (only,) = self.results
        return only

    op.result = property(result)  # type: ignore[attr-defined]
    return op


__all__ = ["all_operands", "one_result"]
