"""Softmax, variances and normalisation of rows, as torch and torch.nn.functional spell them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from .captured_rows import Array, Dims, array, elementwise, fold_in_pairs
from .operation_table import function
from .partial_derivatives import attach_partials
from .proxy import Proxy, TracedValue, apply, compute, without_gradient
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


__all__ = ["layer_norm", "log_softmax", "logsumexp", "rms_norm", "softmax", "std", "var"]
