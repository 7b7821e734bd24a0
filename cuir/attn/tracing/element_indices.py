"""Indices of elements: arithmetic that leaves what is known while tracing to Python."""

from __future__ import annotations

import operator
from collections.abc import Callable

import torch

from .proxy import Place, Proxy
from .refusal import refuse

Index = tuple[Place, ...]


def along(at: int, start: int, step: int) -> Callable[[Index], Place]:
    return lambda index: plus(times(index[at], step), start)


def always(i: Place) -> Callable[[Index], Place]:
    return lambda index: i


def plus(x: Place, y: Place) -> Place:
    return x if _is(y, 0) else y if _is(x, 0) else x + y


def minus(x: Place, y: Place) -> Place:
    return x - y


def times(x: Place, n: int) -> Place:
    return 0 if _is(x, 0) else x if n == 1 else x * n


def quotient(x: Place, n: int) -> Place:
    return x if n == 1 else x // max(n, 1)


def remainder(x: Place, n: int) -> Place:
    return 0 if n == 1 else x % max(n, 1)


def _is(x: Place, n: int) -> bool:
    return type(x) is int and x == n


def whole(index: object, size: int) -> Place:
    """Return an index of one element; a negative constant or captured number counts from the end."""
    if hasattr(index, "__index__") and not isinstance(index, (Proxy, torch.Tensor)):
        index = operator.index(index)
    value = index.value if isinstance(index, Proxy) else index
    if isinstance(index, bool) or not isinstance(index, (int, Proxy, torch.Tensor)):
        refuse(f"a captured tensor is indexed by integers, found {type(index).__name__}", "one index for each dim: doc[b, q_idx]")
    if isinstance(value, int) and not -size <= value < size:
        refuse(f"element {value} of a dim of {size} is read", "-1 is the last one", "U416")
    return index + size if isinstance(value, int) and value < 0 else index


__all__ = ["Index", "along", "always", "minus", "plus", "quotient", "remainder", "times", "whole"]
