"""Norms and distances of rows, as torch.norm, torch.linalg and torch.nn.functional spell them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NoReturn

import torch

from .captured_rows import Dims, array, elementwise, fold_in_pairs, number
from .operation_table import function
from .partial_derivatives import attach_partials
from .proxy import Proxy, Rows, Scalar, TracedValue, apply, compute, lift
from .reductions import amax, amin
from .refusal import refuse

Order = Scalar | Rows  # of a norm: a number that is known while tracing


@function("norm")
def norm(
    input: object, p: Order | str | None = "fro", dim: Dims = None, keepdim: bool = False, dtype: torch.dtype | None = None
) -> TracedValue:
    if isinstance(p, str) and p != "fro":
        _refuse_matrix(p)
    return vector_norm(input, 2 if p is None or isinstance(p, str) else p, dim, keepdim, dtype=dtype)


@function("linalg_norm")
def linalg_norm(
    input: object, ord: Order | str | None = None, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> TracedValue:
    x, dims = array(input), (dim,) if isinstance(dim, int) else dim
    if isinstance(ord, str) or (ord is not None and (x.ndim if dims is None else len(dims)) == 2):
        return matrix_norm(x, ord, (-2, -1) if dims is None else dims, keepdim, dtype=dtype)
    return vector_norm(x, 2 if ord is None else ord, dims, keepdim, dtype=dtype)


@function("linalg_matrix_norm")
def matrix_norm(
    A: object, ord: object = "fro", dim: Sequence[int] = (-2, -1), keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> TracedValue:
    x = array(A)
    if x.ndim < 2:
        refuse(f"a matrix norm of an array of {x.ndim} dims", "torch.linalg.vector_norm is for rows")
    if isinstance(ord, str) and ord == "fro":
        return vector_norm(x, 2, dim, keepdim, dtype=dtype)
    if isinstance(ord, str) or ord not in (1, -1, math.inf, -math.inf):
        _refuse_matrix(ord)
    rows, columns = (x.axis(d) for d in dim)
    summed, compared = (rows, columns) if abs(ord) == 1 else (columns, rows)
    sums = array(vector_norm(x, 1, summed, True, dtype=dtype))
    result = array(amax(sums, compared, True) if ord > 0 else amin(sums, compared, True))
    return result if keepdim else result.squeeze(rows, columns)


@function("linalg_vector_norm", "vector_norm")
def vector_norm(x: object, ord: Order = 2, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> TracedValue:
    elements = array(x if dtype is None else apply("to", x, dtype))
    if isinstance(ord, (Proxy, Rows)):
        ord = float(lift(ord).require_value("the order of a norm"))
    if isinstance(ord, bool) or not isinstance(ord, (int, float)):
        refuse(f"a norm of order {ord!r}", "a number: 2, 1 or math.inf")
    if ord == 2:
        return elements.reduce_dims(dim, keepdim, "summed", _euclidean, lift, 0.0)
    if ord == 0:
        return apply("float", array(elementwise("ne", (elements, 0), {})).sum(dim, keepdim))
    sizes = array(elementwise("abs", (elements,), {}))
    if ord == math.inf:
        return amax(sizes, dim, keepdim)
    if ord == -math.inf:
        return amin(sizes, dim, keepdim)
    if ord == 1:
        return apply("float", sizes.sum(dim, keepdim))
    return elements.reduce_dims(dim, keepdim, "summed", _of_order(float(ord)), lift, 0.0)


def _euclidean(items: Sequence[Proxy]) -> Proxy:
    """Return the root of the sum of squares; its derivative is 0 where all elements are 0."""
    root = compute("sqrt", _sum([number(compute("mul", x, x)) for x in items]))

    def partials(z: Proxy, *xs: Proxy) -> tuple[Proxy, ...]:
        return tuple(_unless_zero(z, compute("truediv", x, z)) for x in xs)

    return attach_partials(root, partials, *items)


def _of_order(order: float) -> Callable[[Sequence[Proxy]], Proxy]:
    """Return the fold to a root of a sum of powers.

    Its derivative is 0 where all elements are 0, and for orders below 1 by each element that is 0.
    """

    def fold(items: Sequence[Proxy]) -> Proxy:
        total = _sum([compute("pow", compute("float", compute("abs", x)), order) for x in items])

        def partials(z: Proxy, *xs: Proxy) -> tuple[Proxy, ...]:
            shares = [compute("pow", compute("truediv", compute("abs", x), z), order - 1.0) for x in xs]
            signed = [compute("mul", compute("sign", x), share) for x, share in zip(xs, shares, strict=True)]
            return tuple(_unless_zero(x if order < 1 else z, change) for x, change in zip(xs, signed, strict=True))

        return attach_partials(compute("pow", total, 1.0 / order), partials, *items)

    return fold


def _sum(items: Sequence[Proxy]) -> Proxy:
    return fold_in_pairs(items, lambda x, y: compute("add", x, y))


def _unless_zero(x: Proxy, change: Proxy) -> Proxy:
    return compute("where", compute("eq", x, 0.0), 0.0, change)


@function("dist")
def dist(input: object, other: object, p: Order = 2) -> TracedValue:
    return vector_norm(apply("sub", input, other), p)


@function("pairwise_distance")
def pairwise_distance(x1: object, x2: object, p: Order = 2.0, eps: float = 1e-6, keepdim: bool = False) -> TracedValue:
    return vector_norm(apply("add", apply("sub", x1, x2), eps), p, -1, keepdim)


@function("normalize")
def normalize(input: object, p: Order = 2.0, dim: int = 1, eps: float = 1e-12) -> TracedValue:
    return apply("div", input, apply("clamp_min", vector_norm(input, p, dim, True), eps))


@function("cosine_similarity")
def cosine_similarity(x1: object, x2: object, dim: int = 1, eps: float = 1e-8) -> TracedValue:
    lengths = [array(x).reduce_dims(dim, False, "summed", _length_at_least(eps), lift, eps) for x in (x1, x2)]
    return apply("div", vecdot(x1, x2, dim=dim), apply("mul", *lengths))


def _length_at_least(eps: float) -> Callable[[Sequence[Proxy]], Proxy]:
    """Return a function that folds items to their Euclidean length, at least eps.

    As in PyTorch, the bound does not stop the derivative.
    """

    def fold(items: Sequence[Proxy]) -> Proxy:
        length = _euclidean(items)
        return attach_partials(compute("clamp_min", length, eps), lambda z, n: (1.0,), length)

    return fold


@function("linalg_vecdot")
def vecdot(x: object, y: object, *, dim: int = -1) -> TracedValue:
    return array(apply("mul", x, y)).sum(dim)


def _refuse_matrix(order: object) -> NoReturn:
    refuse(
        f"a matrix norm of order {order!r}", "singular values are none of a kernel's: compute it before the mod, or take the Frobenius norm"
    )
