"""Registry of the interpreter's implementations of table entries, which the modules in ops/ enter.

An implementation is a function from a `Site` (a call or an operator in the text) to what runs there: a function of the
worker that gives the value, or for a statement GO, BLOCK or POINT (machine.py). Declarations build what they declare.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

RUNS: dict[str, Callable[..., Any]] = {}
F = TypeVar("F", bound=Callable[..., Any])


def runs(*names: str) -> Callable[[F], F]:
    """Register the implementation of entries of the table; a duplicate name is an internal error."""

    def enter(function: F) -> F:
        for name in names:
            if name in RUNS:
                raise ValueError(f"the meaning of {name} is entered twice: {RUNS[name].__module__} and {function.__module__}")
            RUNS[name] = function
        return function

    return enter
