"""Operands and results by name, read directly. xDSL finds what a name means anew at each reading; passes read nothing as often as these."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import TypeVar

from xdsl.ir import Operation

Op = TypeVar("Op", bound=type[Operation])


def all_operands(name: str) -> Callable[[Op], Op]:
    """Of an operation whose operands have one name together, as they were declared: the tuple of them."""

    def named(op: Op) -> Op:
        setattr(op, name, property(attrgetter("_operands")))  # `operands` is a view, made at each reading
        return op

    return named


def one_result(op: Op) -> Op:
    """Of an operation with a single `result`, as it was declared."""

    def result(self: Operation) -> object:
        (only,) = self.results
        return only

    op.result = property(result)  # type: ignore[attr-defined]
    return op


__all__ = ["all_operands", "one_result"]
