"""Extrema of rows and their places; derivatives are PyTorch's where elements are equal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from .arrays import array, elementwise, fold_in_pairs, function, number
from .partials import attach_partials, share_evenly
from .proxy import Proxy, Rows, call, lift


class Extreme(tuple[Any, Any]):
    """The pair (values, indices) of `max` and `min` along a dim; the places are computed on demand."""

    places: Callable[[], Any]

    def __new__(cls, values: Any, places: Callable[[], Any]) -> Extreme:
        pair = super().__new__(cls, (values, None))
        pair.places = places
        return pair

    @property
    def values(self) -> Any:
        return super().__getitem__(0)

    @property
    def indices(self) -> Any:
        return self.places()

    def __iter__(self) -> Iterator[Any]:
        return iter((self.values, self.indices))

    def __getitem__(self, item: Any) -> Any:
        return self.values if item in (0, -2) else (self.values, self.indices)[item]


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
    if dim is None:
        return _extremum(input, name, None, False)
    return Extreme(_extremum(input, name, dim, keepdim, first=True), lambda: _place(input, name, dim, keepdim))


def _extremum(input: Any, name: str, dim: Any, keepdim: bool, first: bool = False) -> Any:
    """Return the extremum along dims.

    first: the first of equal elements has the derivative, as where PyTorch gives the place, too; else they share it evenly.
    """

    def join(x: Any, y: Any) -> Any:
        value = call(name, (x, y), {})
        return attach_partials(value, partials, x, y) if first else value

    def partials(z: Any, x: Any, y: Any) -> tuple[Any, ...]:
        before = call("ge" if name == "maximum" else "le", (x, y), {})
        return call("where", (before, 1.0, 0.0), {}), call("where", (before, 0.0, 1.0), {})

    def fold(items: Sequence[Any]) -> Any:
        value = fold_in_pairs(items, join)
        return value if first else share_evenly(value, items)

    return array(input).folded(dim, keepdim, "compared", fold, lift, None)


@function("argmax")
def argmax(input: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return _place(input, "maximum", dim, keepdim)


@function("argmin")
def argmin(input: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return _place(input, "minimum", dim, keepdim)


def _place(input: Any, name: str, dim: Any, keepdim: bool) -> Any:
    """Return the place of the first extremum along a dim; among all elements, if dim is None.

    A NaN is beyond every number.
    """
    before = "ge" if name == "maximum" else "le"

    def join(x: tuple[Any, Any], y: tuple[Any, Any]) -> tuple[Any, Any]:
        later = call("and", (call("invert", (call(before, (x[0], y[0]), {}),), {}), call("eq", (x[0], x[0]), {})), {})
        return call(name, (x[0], y[0]), {}), call("where", (later, y[1], x[1]), {})

    def fold(items: Sequence[Any]) -> Any:
        return lift(fold_in_pairs([(x, n) for n, x in enumerate(items)], join)[1])

    return array(input).folded(dim, keepdim, "compared", fold, number, None)


__all__ = ["Extreme", "amax", "amin", "argmax", "argmin", "largest", "smallest"]
