"""Who gives an entry of the table its meaning in the interpreter. Owns no meaning; the modules in ops/ enter them.

A meaning is a function from a `Site` (a call or an operator in the text) to what runs there: a function of the worker that gives the value, or for a
statement GO, BLOCK or POINT (machine.py). Declarations build what they declare.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

RUNS: dict[str, Callable[..., Any]] = {}
F = TypeVar("F", bound=Callable[..., Any])


def runs(*names: str) -> Callable[[F], F]:
    """Enters the meaning of entries of the table. A name entered twice is an error of ours."""

    def enter(function: F) -> F:
        for name in names:
            if name in RUNS:
                raise ValueError(f"the meaning of {name} is entered twice: {RUNS[name].__module__} and {function.__module__}")
            RUNS[name] = function
        return function

    return enter
