"""Verdicts of the checker on settings of a program, kept in the cache folder."""

from __future__ import annotations

from collections.abc import Mapping

from ...checking.checked import Const
from ...runtime.result_cache import remember
from ...syntax.nodes import Program
from ...syntax.printer import show
from .space import find_violation

STACK_OVERFLOW = "P018"  # of nested expressions: another caller may have more of the stack left


class _NotKept(Exception):
    """A verdict that holds for this call alone."""


def fits(program: Program, kernel: str | None, consts: Mapping[str, Const]) -> bool:
    """Return whether a candidate passes the checker (see `find_violation`).

    The verdict is from the cache folder if it was asked for before.
    """

    def check() -> bool:
        violation = find_violation(program, kernel, consts)
        if violation is not None and violation.code == STACK_OVERFLOW:
            raise _NotKept
        return violation is None

    values = sorted((name, repr(value)) for name, value in consts.items())
    try:
        return remember("fits", [show(program), repr(kernel), repr(values)], bool, check)
    except _NotKept:
        return False


__all__ = ["fits"]
