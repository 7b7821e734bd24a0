"""Extrema of rows and their indices; derivatives are PyTorch's where elements are equal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import SupportsIndex, overload

import torch

from .captured_rows import Dims, array, elementwise, fold_in_pairs, number
from .operation_table import function
from .partial_derivatives import attach_partials, share_evenly
from .proxy import Proxy, Rows, Scalar, TracedValue, compute, lift

DimOrTensor = int | Proxy | Rows | torch.Tensor | None  # of `max` and `min`: the other tensor, for one


class Extreme(tuple[object, object]):
    """The pair (values, indices) of `max` and `min` along a dim; the places are computed on demand."""

    values: TracedValue
    places: Callable[[], TracedValue]

    def __new__(cls, values: TracedValue, places: Callable[[], TracedValue]) -> Extreme:
        pair = super().__new__(cls, (values, None))
        pair.values, pair.places = values, places
        return pair

    @property
    def indices(self) -> TracedValue:
        return self.places()

    def __iter__(self) -> Iterator[TracedValue]:
        return iter((self.values, self.indices))

    @overload
    def __getitem__(self, item: SupportsIndex) -> TracedValue: ...
    @overload
    def __getitem__(self, item: slice) -> tuple[TracedValue, ...]: ...
    def __getitem__(self, item: SupportsIndex | slice) -> TracedValue | tuple[TracedValue, ...]:
        return self.values if item in (0, -2) else (self.values, self.indices)[item]


@function("amax")
def amax(input: object, dim: Dims = None, keepdim: bool = False) -> TracedValue:
    return _extremum(input, "maximum", dim, keepdim)


@function("amin")
def amin(input: object, dim: Dims = None, keepdim: bool = False) -> TracedValue:
    return _extremum(input, "minimum", dim, keepdim)


@function("max")
def largest(input: object, dim: DimOrTensor = None, keepdim: bool = False) -> TracedValue | Extreme:
    return _largest_or_smallest(input, "maximum", dim, keepdim)


@function("min")
def smallest(input: object, dim: DimOrTensor = None, keepdim: bool = False) -> TracedValue | Extreme:
    return _largest_or_smallest(input, "minimum", dim, keepdim)


def _largest_or_smallest(input: object, name: str, dim: DimOrTensor, keepdim: bool) -> TracedValue | Extreme:
    if isinstance(dim, (Proxy, Rows, torch.Tensor)):  # of two tensors, element by element
        return elementwise(name, (input, dim), {})
    if dim is None:
        return _extremum(input, name, None, False)
    return Extreme(_extremum(input, name, dim, keepdim, first=True), lambda: _place(input, name, dim, keepdim))


def _extremum(input: object, name: str, dim: Dims, keepdim: bool, first: bool = False) -> TracedValue:
    """Return the extremum along dims.

    first: the first of equal elements has the derivative, as where PyTorch gives the place, too; else they share it evenly.
    """

    def join(x: Proxy, y: Proxy) -> Proxy:
        value = compute(name, x, y)
        return attach_partials(value, partials, x, y) if first else value

    def partials(z: Proxy, x: Proxy, y: Proxy) -> tuple[Proxy, ...]:
        before = compute("ge" if name == "maximum" else "le", x, y)
        return compute("where", before, 1.0, 0.0), compute("where", before, 0.0, 1.0)

    def fold(items: Sequence[Proxy]) -> Proxy:
        value = fold_in_pairs(items, join)
        return value if first else share_evenly(value, items)

    return array(input).reduce_dims(dim, keepdim, "compared", fold, lift, None)


@function("argmax")
def argmax(input: object, dim: int | None = None, keepdim: bool = False) -> TracedValue:
    return _place(input, "maximum", dim, keepdim)


@function("argmin")
def argmin(input: object, dim: int | None = None, keepdim: bool = False) -> TracedValue:
    return _place(input, "minimum", dim, keepdim)


def _place(input: object, name: str, dim: int | None, keepdim: bool) -> TracedValue:
    """Return the index of the first extremum along a dim; among all elements, if dim is None.

    A NaN is beyond every number.
    """
    before = "ge" if name == "maximum" else "le"

    def join(x: tuple[Proxy, Scalar], y: tuple[Proxy, Scalar]) -> tuple[Proxy, Scalar]:
        later = compute("and", compute("invert", compute(before, x[0], y[0])), compute("eq", x[0], x[0]))
        return compute(name, x[0], y[0]), compute("where", later, y[1], x[1])

    def fold(items: Sequence[Proxy]) -> Proxy:
        numbered: list[tuple[Proxy, Scalar]] = [(x, n) for n, x in enumerate(items)]
        return lift(fold_in_pairs(numbered, join)[1])

    return array(input).reduce_dims(dim, keepdim, "compared", fold, number, None)


__all__ = ["Extreme", "amax", "amin", "argmax", "argmin", "largest", "smallest"]
