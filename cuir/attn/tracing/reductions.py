"""Reductions of rows: extrema and their indices, and sums of products, such as linear layers.

Derivatives of extrema are PyTorch's where elements are equal.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import SupportsIndex, overload

import torch

from .captured_rows import MOST, Array, Dims, array, elementwise, fold_in_pairs, make_shaped, number
from .element_indices import Index
from .operation_table import function
from .partial_derivatives import attach_partials, share_evenly
from .proxy import Proxy, Rows, Scalar, TracedValue, apply, compute, lift
from .refusal import refuse

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


@function("linear")
def linear(input: object, weight: object, bias: object = None) -> TracedValue:
    x, rows = array(input), array(weight)
    if not 1 <= rows.ndim <= 2 or not x.ndim or x.shape[-1] != rows.shape[-1]:
        refuse(f"a linear layer [{', '.join(map(str, rows.shape))}] of {list(x.shape)}", "the last dims are alike")
    product = _contract([x, rows], [_LETTERS[: x.ndim], ("y" if rows.ndim == 2 else "") + _LETTERS[x.ndim - 1]])
    return product if bias is None else apply("add", product, bias)


@function("outer", "ger")
def outer(input: object, vec2: object) -> TracedValue:
    x, y = array(input), array(vec2)
    if (x.ndim, y.ndim) != (1, 1):
        refuse(f"an outer product of {list(x.shape)} and {list(y.shape)}", "it is of two rows")
    return _contract([x, y], ["a", "b"])


@function("einsum")
def einsum(equation: object, *operands: object) -> TracedValue:
    if not isinstance(equation, str):
        refuse("einsum with lists of dims", 'an equation: torch.einsum("d,d->", x, y)')
    inputs = operands[0] if len(operands) == 1 and isinstance(operands[0], (list, tuple)) else operands
    operand_labels, arrow, result_labels = equation.replace(" ", "").partition("->")
    labels = operand_labels.split(",")
    arrays = [array(x) for x in inputs]
    if "." in equation or len(labels) != len(arrays) or any(len(letters) != x.ndim for letters, x in zip(labels, arrays)):
        refuse(f'einsum "{equation}" of {" and ".join(str(list(x.shape)) for x in arrays)}', "one letter for each dim of each operand")
    joined = "".join(labels)
    result = result_labels if arrow else "".join(sorted(label for label in set(joined) if joined.count(label) == 1))
    if len(set(result)) != len(result) or not set(result) <= set(joined):
        refuse(f'einsum "{equation}"', "each dim of the result is one of an operand")
    return _contract(arrays, labels, result)


_LETTERS = "abcdefghijklmnopqrstuvw"


def _contract(arrays: list[Array], labels: list[str], result: str | None = None) -> TracedValue:
    """Sum products of elements over the labels that are missing in the result, as einsum does.

    Args:
        labels: a letter for each dim of each array.
        result: labels of the result; by default those that a single operand has.
    """
    sizes: dict[str, int] = {}
    for x, letters in zip(arrays, labels, strict=True):
        for label, n in zip(letters, x.shape, strict=True):
            size = sizes.setdefault(label, n)
            if 1 in (size, n):
                sizes[label] = max(size, n)
            elif size != n:
                refuse(f"a product over dims of {size} and {n} elements", "a label has one size")
    if result is None:
        joined = "".join(labels)
        result = "".join(label for label in sizes if joined.count(label) == 1)
    summed = [label for label in sizes if label not in result]
    if any(x.follows for x in arrays) or (count := math.prod(sizes[label] for label in summed)) > MOST:
        refuse(
            f"{'as many elements as the lengths say' if any(x.follows for x in arrays) else count} are summed for each pair of query and key",
            f"{MOST} are the most: compute it before the mod, and index the result in the mod",
        )

    def element(index: Index) -> Scalar:
        places = dict(zip(result, index, strict=True))
        terms = []
        for inner in itertools.product(*(range(sizes[label]) for label in summed)):
            at = {**places, **dict(zip(summed, inner, strict=True))}
            read = [
                x.element(tuple(0 if n == 1 else at[label] for label, n in zip(letters, x.shape))) for x, letters in zip(arrays, labels)
            ]
            terms.append(fold_in_pairs(read, lambda x, y: compute("mul", x, y)))
        return fold_in_pairs(terms, lambda x, y: compute("add", x, y))

    return make_shaped([sizes[label] for label in result], element)


__all__ = ["Extreme", "amax", "amin", "argmax", "argmin", "einsum", "largest", "linear", "outer", "smallest"]
