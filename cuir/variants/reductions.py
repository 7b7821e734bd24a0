"""Extrema of rows, whose derivatives are PyTorch's where elements are equal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import torch

from .arrays import array, elementwise, function, joined_in_pairs
from .partials import shared_evenly, with_partials
from .proxy import Proxy, Rows, call, lift
from .refusal import refuse


class Extreme(NamedTuple):
    """What `max` and `min` along a dim give, as far as a kernel has it."""

    values: Any

    @property
    def indices(self) -> NoReturn:
        refuse("the place of an extreme element cannot become part of a kernel", "its value can: .values, or amax and amin")


@function("amax")
def amax(input: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return _extremum(input, "maximum", dim, keepdim)


@function("amin")
def amin(input: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return _extremum(input, "minimum", dim, keepdim)


@function("max")
def largest(input: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return _largest_or_smallest(input, "maximum", dim, keepdim)


@function("min")
def smallest(input: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return _largest_or_smallest(input, "minimum", dim, keepdim)


def _largest_or_smallest(input: Any, name: str, dim: Any, keepdim: bool) -> Any:
    if isinstance(dim, (Proxy, Rows, torch.Tensor)):  # of two tensors, element by element
        return elementwise(name, (input, dim), {})
    return _extremum(input, name, None, False) if dim is None else Extreme(_extremum(input, name, dim, keepdim, first=True))


def _extremum(input: Any, name: str, dim: Any, keepdim: bool, first: bool = False) -> Any:
    """The extremum along dims. first: the first of equal elements has its derivative, as where PyTorch gives the place, too; else they share it evenly."""

    def join(x: Any, y: Any) -> Any:
        value = call(name, (x, y), {})
        return with_partials(value, partials, x, y) if first else value

    def partials(z: Any, x: Any, y: Any) -> tuple[Any, ...]:
        before = call("ge" if name == "maximum" else "le", (x, y), {})
        return call("where", (before, 1.0, 0.0), {}), call("where", (before, 0.0, 1.0), {})

    def fold(items: Sequence[Any]) -> Any:
        value = joined_in_pairs(items, join)
        return value if first else shared_evenly(value, items)

    return array(input).folded(dim, keepdim, "compared", fold, lift, None)


__all__ = ["Extreme", "amax", "amin", "largest", "smallest"]
