"""Softmax, variances and normalisation of rows, as torch and torch.nn.functional spell them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .arrays import array, elementwise, fold_in_pairs, function
from .partials import attach_partials
from .proxy import call, without_gradient
from .refusal import refuse

Dims = int | tuple[int, ...] | None


# ---- softmax
@function("logsumexp")
def logsumexp(input: Any, dim: Any, keepdim: bool = False) -> Any:
    return array(input).folded(dim, keepdim, "summed", _log_of_sum, _float, -math.inf)


def _log_of_sum(items: Sequence[Any]) -> Any:
    most = without_gradient(fold_in_pairs(items, lambda x, y: call("maximum", (x, y), {})))
    shift = _unless_infinite(most)
    total = _sum([call("exp", (call("sub", (x, shift), {}),), {}) for x in items])
    value = call("add", (call("log", (total,), {}), shift), {})

    def partials(z: Any, *xs: Any) -> tuple[Any, ...]:
        least = call("where", (call("isneginf", (z,), {}), 0.0, z), {})
        return tuple(call("exp", (call("sub", (x, least), {}),), {}) for x in xs)

    return attach_partials(value, partials, *items)


def _unless_infinite(x: Any) -> Any:
    return call("where", (call("isinf", (x,), {}), 0.0, x), {})


@function("softmax")
def softmax(input: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Any:
    powers = array(call("exp", (_below_the_most(input, dim, dtype),), {}))
    return call("truediv", (powers, powers.sum(dim, True)), {})


@function("softmin")
def softmin(input: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Any:
    return softmax(call("neg", (input,), {}), dim, _stacklevel, dtype)


@function("log_softmax")
def log_softmax(input: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Any:
    x = _below_the_most(input, dim, dtype)
    return call("sub", (x, call("log", (array(call("exp", (x,), {})).sum(dim, True),), {})), {})


def _below_the_most(input: Any, dim: Any, dtype: Any) -> Any:
    """Subtract the largest element along a dim, so that no power overflows."""
    if not isinstance(dim, int):
        refuse(f"softmax along dim {dim}", "dim=-1")
    x = array(input if dtype is None else call("to", (input, dtype), {}))
    return array(call("sub", (x, call("detach", (call("amax", (x, dim, True), {}),), {})), {}))


# ---- variances
@function("var")
def var(input: Any, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *, correction: Any = None) -> Any:
    return _spread(input, dim, unbiased, keepdim, correction, lambda items, degrees: _variance(items, degrees)[0])


@function("std")
def std(input: Any, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *, correction: Any = None) -> Any:
    return _spread(input, dim, unbiased, keepdim, correction, _deviation)


@function("var_mean")
def var_mean(input: Any, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *, correction: Any = None) -> Any:
    dims = None if isinstance(dim, bool) else dim
    return var(input, dim, unbiased, keepdim, correction=correction), array(input).mean(dims, keepdim)


@function("std_mean")
def std_mean(input: Any, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *, correction: Any = None) -> Any:
    dims = None if isinstance(dim, bool) else dim
    return std(input, dim, unbiased, keepdim, correction=correction), array(input).mean(dims, keepdim)


def _spread(input: Any, dim: Any, unbiased: Any, keepdim: bool, correction: Any, statistic: Callable[[Sequence[Any], float], Any]) -> Any:
    """Fold rows by their number of degrees of freedom.

    A bool in place of the dims says whether the estimate is unbiased.
    """
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    less = float(correction) if correction is not None else float(unbiased is None or bool(unbiased))

    def fold(items: Sequence[Any]) -> Any:
        if len(items) <= less:
            refuse(f"the variance of {len(items)} elements has no degrees of freedom", "correction=0 divides by the number of elements")
        return statistic(items, len(items) - less)

    return array(input).folded(dim, keepdim, "summed", fold, _float, None)


def _variance(items: Sequence[Any], degrees: float) -> tuple[Any, list[Any]]:
    """Return the sum of squared deviations by the degrees of freedom, and the deviations."""
    mean = call("truediv", (_sum(items), len(items)), {})
    deviations = [call("sub", (x, mean), {}) for x in items]
    return call("truediv", (_sum([call("mul", (d, d), {}) for d in deviations]), degrees), {}), deviations


def _deviation(items: Sequence[Any], degrees: float) -> Any:
    """Return the root of the variance; its derivative is 0 where all elements are equal."""
    root = call("sqrt", (_variance(items, degrees)[0],), {})

    def partials(z: Any, *xs: Any) -> tuple[Any, ...]:
        changes = [call("truediv", (d, call("mul", (z, degrees), {})), {}) for d in _variance(xs, degrees)[1]]
        return tuple(call("where", (call("eq", (z, 0.0), {}), 0.0, change), {}) for change in changes)

    return attach_partials(root, partials, *items)


# ---- normalisation
@function("layer_norm")
def layer_norm(input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    x, dims = _normalised_dims(input, normalized_shape)
    centred = call("sub", (x, x.mean(dims, True)), {})
    spread = var(x, dims, False, True)
    return _scaled(call("mul", (centred, call("rsqrt", (call("add", (spread, eps), {}),), {})), {}), weight, bias)


@function("rms_norm")
def rms_norm(input: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    x, dims = _normalised_dims(input, normalized_shape)
    squares = array(elementwise("mul", (x, x), {})).mean(dims, True)
    least = torch.finfo(torch.float32).eps if eps is None else eps
    return _scaled(call("mul", (x, call("rsqrt", (call("add", (squares, least), {}),), {})), {}), weight, None)


def _normalised_dims(input: Any, shape: Any) -> tuple[Any, tuple[int, ...]]:
    x, sizes = array(input), tuple(int(n) for n in shape)
    if not sizes or tuple(x.shape[-len(sizes) :]) != sizes:
        refuse(f"normalisation over {list(sizes)} of a tensor of shape {list(x.shape)}", "these are its last dims")
    return x, tuple(range(x.ndim - len(sizes), x.ndim))


def _scaled(x: Any, weight: Any, bias: Any) -> Any:
    x = x if weight is None else call("mul", (x, weight), {})
    return x if bias is None else call("add", (x, bias), {})


def _float(x: Any) -> Any:
    return call("float", (x,), {})


def _sum(items: Sequence[Any]) -> Any:
    return fold_in_pairs(items, lambda x, y: call("add", (x, y), {}))


__all__ = ["layer_norm", "log_softmax", "logsumexp", "rms_norm", "softmax", "std", "var"]
