"""Softmax, variances, normalisation, norms and distances of rows, as PyTorch spells them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NoReturn

import torch

from .captured_rows import Array, Dims, array, elementwise, fold_in_pairs, number
from .operation_table import function
from .partial_derivatives import attach_partials
from .proxy import Proxy, Rows, Scalar, TracedValue, apply, compute, lift, without_gradient
from .reductions import amax, amin
from .refusal import refuse


# ---- softmax
@function("logsumexp")
def logsumexp(input: object, dim: Dims, keepdim: bool = False) -> TracedValue:
    return array(input).reduce_dims(dim, keepdim, "summed", _log_of_sum, _float, -math.inf)


def _log_of_sum(items: Sequence[Proxy]) -> Proxy:
    most = without_gradient(fold_in_pairs(items, lambda x, y: compute("maximum", x, y)))
    shift = _unless_infinite(most)
    total = _sum([compute("exp", compute("sub", x, shift)) for x in items])
    value = compute("add", compute("log", total), shift)

    def partials(z: Proxy, *xs: Proxy) -> tuple[Proxy, ...]:
        least = compute("where", compute("isneginf", z), 0.0, z)
        return tuple(compute("exp", compute("sub", x, least)) for x in xs)

    return attach_partials(value, partials, *items)


def _unless_infinite(x: Proxy) -> Proxy:
    return compute("where", compute("isinf", x), 0.0, x)


@function("softmax")
def softmax(input: object, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None) -> TracedValue:
    powers = array(apply("exp", _below_the_most(input, dim, dtype)))
    return apply("truediv", powers, powers.sum(dim, True))


@function("softmin")
def softmin(input: object, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None) -> TracedValue:
    return softmax(apply("negative", input), dim, _stacklevel, dtype)


@function("log_softmax")
def log_softmax(input: object, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None) -> TracedValue:
    x = _below_the_most(input, dim, dtype)
    return apply("sub", x, apply("log", array(apply("exp", x)).sum(dim, True)))


def _below_the_most(input: object, dim: int | None, dtype: torch.dtype | None) -> Array:
    """Subtract the largest element along a dim, so that no power overflows."""
    if not isinstance(dim, int):
        refuse(f"softmax along dim {dim}", "dim=-1")
    x = array(input if dtype is None else apply("to", input, dtype))
    return array(apply("sub", x, apply("detach", apply("amax", x, dim, True))))


# ---- variances
@function("var")
def var(
    input: object, dim: Dims = None, unbiased: bool | None = None, keepdim: bool = False, *, correction: float | None = None
) -> TracedValue:
    return _spread(input, dim, unbiased, keepdim, correction, lambda items, degrees: _variance(items, degrees)[0])


@function("std")
def std(
    input: object, dim: Dims = None, unbiased: bool | None = None, keepdim: bool = False, *, correction: float | None = None
) -> TracedValue:
    return _spread(input, dim, unbiased, keepdim, correction, _deviation)


@function("var_mean")
def var_mean(
    input: object, dim: Dims = None, unbiased: bool | None = None, keepdim: bool = False, *, correction: float | None = None
) -> tuple[TracedValue, TracedValue]:
    dims = None if isinstance(dim, bool) else dim
    return var(input, dim, unbiased, keepdim, correction=correction), array(input).mean(dims, keepdim)


@function("std_mean")
def std_mean(
    input: object, dim: Dims = None, unbiased: bool | None = None, keepdim: bool = False, *, correction: float | None = None
) -> tuple[TracedValue, TracedValue]:
    dims = None if isinstance(dim, bool) else dim
    return std(input, dim, unbiased, keepdim, correction=correction), array(input).mean(dims, keepdim)


def _spread(
    input: object,
    dim: Dims,
    unbiased: bool | None,
    keepdim: bool,
    correction: float | None,
    statistic: Callable[[Sequence[Proxy], float], Proxy],
) -> TracedValue:
    """Fold rows by their number of degrees of freedom.

    A bool in place of the dims says whether the estimate is unbiased.
    """
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    less = float(correction) if correction is not None else float(unbiased is None or bool(unbiased))

    def fold(items: Sequence[Proxy]) -> Proxy:
        if len(items) <= less:
            refuse(f"the variance of {len(items)} elements has no degrees of freedom", "correction=0 divides by the number of elements")
        return statistic(items, len(items) - less)

    return array(input).reduce_dims(dim, keepdim, "summed", fold, _float, None)


def _variance(items: Sequence[Proxy], degrees: float) -> tuple[Proxy, list[Proxy]]:
    """Return the sum of squared deviations by the degrees of freedom, and the deviations."""
    mean = compute("truediv", _sum(items), len(items))
    deviations = [compute("sub", x, mean) for x in items]
    return compute("truediv", _sum([compute("mul", d, d) for d in deviations]), degrees), deviations


def _deviation(items: Sequence[Proxy], degrees: float) -> Proxy:
    """Return the root of the variance; its derivative is 0 where all elements are equal."""
    root = compute("sqrt", _variance(items, degrees)[0])

    def partials(z: Proxy, *xs: Proxy) -> tuple[Proxy, ...]:
        changes = [compute("truediv", d, compute("mul", z, degrees)) for d in _variance(xs, degrees)[1]]
        return tuple(compute("where", compute("eq", z, 0.0), 0.0, change) for change in changes)

    return attach_partials(root, partials, *items)


# ---- normalisation
@function("layer_norm")
def layer_norm(
    input: object, normalized_shape: Sequence[int], weight: object = None, bias: object = None, eps: float = 1e-5
) -> TracedValue:
    x, dims = _find_normalised_dims(input, normalized_shape)
    centred = apply("sub", x, x.mean(dims, True))
    spread = var(x, dims, False, True)
    return _scale(apply("mul", centred, apply("rsqrt", apply("add", spread, eps))), weight, bias)


@function("rms_norm")
def rms_norm(input: object, normalized_shape: Sequence[int], weight: object = None, eps: float | None = None) -> TracedValue:
    x, dims = _find_normalised_dims(input, normalized_shape)
    squares = array(elementwise("mul", (x, x), {})).mean(dims, True)
    least = torch.finfo(torch.float32).eps if eps is None else eps
    return _scale(apply("mul", x, apply("rsqrt", apply("add", squares, least))), weight, None)


def _find_normalised_dims(input: object, shape: Sequence[int]) -> tuple[Array, tuple[int, ...]]:
    x, sizes = array(input), tuple(int(n) for n in shape)
    if not sizes or tuple(x.shape[-len(sizes) :]) != sizes:
        refuse(f"normalisation over {list(sizes)} of a tensor of shape {list(x.shape)}", "these are its last dims")
    return x, tuple(range(x.ndim - len(sizes), x.ndim))


def _scale(x: TracedValue, weight: object, bias: object) -> TracedValue:
    x = x if weight is None else apply("mul", x, weight)
    return x if bias is None else apply("add", x, bias)


def _float(x: object) -> Proxy:
    return compute("float", x)


def _sum(items: Sequence[Proxy]) -> Proxy:
    return fold_in_pairs(items, lambda x, y: compute("add", x, y))


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


__all__ = [
    "Order",
    "cosine_similarity",
    "dist",
    "layer_norm",
    "linalg_norm",
    "log_softmax",
    "logsumexp",
    "matrix_norm",
    "norm",
    "normalize",
    "pairwise_distance",
    "rms_norm",
    "softmax",
    "std",
    "var",
    "vecdot",
    "vector_norm",
]
