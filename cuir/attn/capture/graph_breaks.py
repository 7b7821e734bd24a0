"""Calls that torch.compile leaves as they are: they run outside of graphs."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def break_graphs(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function at which a compiled graph ends, and behind which the next one begins."""
    disabled: list[Callable[P, R]] = []

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if "torch._dynamo" not in sys.modules:  # importing it takes seconds: not before a caller has
            return function(*args, **kwargs)
        if not disabled:
            disabled.append(torch.compiler.disable(function))
        return disabled[0](*args, **kwargs)

    return run


__all__ = ["break_graphs"]
