"""Integer outputs that follow from floats: values that float64 or float32 may give.

Sums of float32 may be in other orders, and products in TF32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from ..text.diagnostics import CuirError
from .error_bounds import SingleError, Undisturbed

_WORD = 2.0**31
_FILLS = (0, 77, -77)
_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
ORDERS = 4  # evaluations with other orders of sums


def collect_right_integers(single: SingleError, name: str, tf32: bool) -> Iterator[torch.Tensor]:
    """Yield an integer output as float32 gives it: plain, with sums in other orders, with factors in TF32.

    An exact quotient or product stays exact: a neighbouring integer is wrong.
    """
    yield single.plain[name]
    evaluations: list[Callable[[], Any]] = [lambda seed=seed: _evaluate_reordered(single, seed) for seed in range(ORDERS)]  # type: ignore[misc]
    if tf32:
        evaluations.append(lambda: single.tf32_undecided())
    for evaluate in evaluations:
        try:
            for outputs in evaluate():
                yield outputs[name]
        except CuirError:  # a branch in Python may be taken otherwise, and fail
            continue


def find_out_of_range(single: SingleError, name: str) -> torch.Tensor:
    """Return elements that depend on an integer made of NaN, an infinity, or a float beyond 32 bits.

    They are undefined. So are the results of conversions, and the exponents of `frexp`, which C leaves undefined there.
    """
    evaluated = []
    for number in _FILLS:
        with _Converted(number):
            evaluated.append(single.spec.single(single.inputs, single.outputs)[name])
    first = evaluated[0]
    return torch.stack([(x != first) & ~(x.isnan() & first.isnan()) for x in evaluated[1:]]).any(0)


def _evaluate_reordered(single: SingleError, seed: int) -> list[Any]:
    with _OtherOrder(torch.Generator().manual_seed(seed)):
        return [single.spec.single(single.inputs, single.outputs)]


class _Converted(Undisturbed):
    """Mode that replaces each integer converted from a float outside of its range."""

    def __init__(self, number: int):
        super().__init__()
        self.number = number

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result, name = func(*args, **(kwargs or {})), func.overloadpacket.__name__
        if name == "_to_copy" and args[0].is_floating_point() and result.dtype in _INTEGERS:
            return self.replace_outside((args[0] >= -_WORD) & (args[0] < _WORD), result)
        if name == "frexp":
            mantissa, exponent = result
            return mantissa, self.replace_outside(args[0].isfinite(), exponent)
        return result

    def replace_outside(self, is_inside: torch.Tensor, integers: torch.Tensor) -> torch.Tensor:
        return torch.where(is_inside, integers, torch.tensor(self.number).to(integers.dtype))


class _OtherOrder(Undisturbed):
    """Mode that adds up the terms of sums and matrix products in another order."""

    def __init__(self, generator: torch.Generator):
        super().__init__()
        self.generator = generator

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        if name in ("sum", "mean") and args[0].is_floating_point():
            x, dims = args[0], args[1] if len(args) > 1 and args[1] is not None else None
            reduced_dims = range(x.dim()) if dims is None or not isinstance(dims, (list, tuple)) or not dims else dims
            for d in reduced_dims:
                x = x.index_select(d, self.order(x.shape[d]))
            args = (x, *args[1:])
        elif name in ("mm", "bmm", "mv", "dot", "addmm", "baddbmm", "addmv"):
            first = 1 if name in ("addmm", "baddbmm", "addmv") else 0
            a, b = args[first : first + 2]
            order = self.order(a.shape[-1])
            b = b.index_select(0 if b.dim() < 3 else 1, order)
            args = (*args[:first], a.index_select(-1, order), b, *args[first + 2 :])
        return func(*args, **(kwargs or {}))

    def order(self, n: int) -> torch.Tensor:
        return torch.randperm(n, generator=self.generator)


__all__ = ["collect_right_integers", "find_out_of_range"]
