"""Defaults of const parameters: a literal, a dtype, or the value of a const before it."""

from __future__ import annotations

from collections.abc import Mapping

from ..syntax.nodes import ConstType, Kernel, Literal, Name, Param
from ..syntax.types import DTYPES
from .checked import Const
from .fold import fold


def default_of(p: Param, before: Mapping[str, Const]) -> Const | None:
    """The default of a const; before: values of those before it. None if it is none of these, or of a const without a value."""
    if isinstance(p.default, Name):
        return before.get(p.default.id, DTYPES.get(p.default.id))
    folded = fold(p.default) if p.default is not None else None
    return folded.value if isinstance(folded, Literal) else None


def with_defaults(kernel: Kernel, given: Mapping[str, Const]) -> dict[str, Const]:
    """The consts that are given, or have a default of which the value is known."""
    values: dict[str, Const] = {}
    for p in kernel.params:
        if isinstance(p.type, ConstType):
            value = given[p.name] if p.name in given else default_of(p, values)
            if value is not None:
                values[p.name] = value
    return values


__all__ = ["default_of", "with_defaults"]
