"""Comparisons of sizes, without guards on unbacked SymInts, which depend on data inside of a graph."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

import torch
from torch._subclasses import FakeTensor

Size = int | torch.SymInt


def is_known(condition: bool | torch.SymBool) -> bool:
    """Return True if a condition on sizes is known to hold without data."""
    if condition is True or condition is False:
        return condition
    from torch.fx.experimental.symbolic_shapes import guard_or_false

    return bool(guard_or_false(condition))


def are_equal(a: Size, b: Size) -> bool:
    """Compare two sizes; the graph checks those that depend on data when it runs."""
    if type(a) is int and type(b) is int:
        return a == b
    if not torch.compiler.is_compiling() and not isinstance(a, torch.SymInt) and not isinstance(b, torch.SymInt):
        return bool(a == b)
    from torch.fx.experimental.symbolic_shapes import guard_or_true

    same = bool(guard_or_true(a == b))
    if same:
        torch._check(a == b)
    return same


def have_equal_sizes(a: Iterable[Size], b: Iterable[Size]) -> bool:
    """Compare two shapes of one rank."""
    return all(are_equal(x, y) for x, y in zip(a, b, strict=True))


def is_contiguous(x: torch.Tensor) -> bool:
    """Return True if a tensor is known to be contiguous without data."""
    if not isinstance(x, FakeTensor):
        return x.is_contiguous()
    from torch._prims_common import is_contiguous_or_false

    return bool(is_contiguous_or_false(x))


def order_from_outermost(strides: Sequence[int]) -> list[int]:
    """Return dims from the largest stride to the smallest, in plain order where strides are equal."""
    if not any(isinstance(s, torch.SymInt) for s in strides):
        return sorted(range(len(strides)), key=lambda d: (-strides[d], d))

    def compare(d: int, e: int) -> int:
        a, b = strides[d], strides[e]
        if is_known(a > b) or (not is_known(a <= b) and is_known(a % b == 0)):
            return -1
        if is_known(b > a) or (not is_known(b <= a) and is_known(b % a == 0)):
            return 1
        return d - e

    return sorted(range(len(strides)), key=functools.cmp_to_key(compare))


__all__ = ["are_equal", "have_equal_sizes", "is_contiguous", "is_known", "order_from_outermost"]
