"""Scalars that are multiples of a number, by data flow alone."""

from __future__ import annotations

from collections.abc import Callable

from xdsl.ir import BlockArgument, SSAValue

from ..ir import ops
from .value_flow import find_sources

Fits = Callable[[SSAValue], bool]


def is_multiple(value: SSAValue, n: int, fits: Fits | None = None) -> bool:
    """Return whether an i32 scalar is a multiple of `n`.

    Args:
        value: The scalar.
        n: The divisor.
        fits: Predicate of arithmetic that stays within 32 bits, required if `n` is no power of two.

    Raises: ValueError if `n` is no power of two and `fits` is missing.
    """
    if n & (n - 1) == 0:
        fits = None  # a number that wraps stays a multiple
    elif fits is None:
        raise ValueError(f"{n} is no power of two")
    non_multiples: set[SSAValue] = set()
    while True:  # optimistic: a value that depends on itself counts as a multiple until it is shown to be none
        multiples: dict[SSAValue, bool] = {}
        if not _is_multiple(value, n, multiples, non_multiples, fits):
            return False
        refuted = {v for v, holds in multiples.items() if not holds} - non_multiples
        if not refuted:
            return True
        non_multiples |= refuted


def _is_multiple(value: SSAValue, n: int, multiples: dict[SSAValue, bool], non_multiples: set[SSAValue], fits: Fits | None) -> bool:
    if value not in multiples:
        multiples[value] = value not in non_multiples
        multiples[value] &= _compute(value, n, multiples, non_multiples, fits)
    return multiples[value]


def _compute(value: SSAValue, n: int, multiples: dict[SSAValue, bool], non_multiples: set[SSAValue], fits: Fits | None) -> bool:
    constant, op = ops.constant_value(value), value.owner
    if constant is not None:
        return int(constant) % n == 0
    if (inputs := find_sources(value)) is not None:
        return all(_is_multiple(v, n, multiples, non_multiples, fits) for v in inputs)
    if isinstance(value, BlockArgument):
        loop = value.block.parent_op()
        return isinstance(loop, ops.For) and loop.step.data % n == 0 and _is_multiple(loop.start, n, multiples, non_multiples, fits)
    if not isinstance(op, ops.Apply) or (fits is not None and not fits(value)):
        return False
    if op.kind.linear:
        return all(_is_multiple(a, n, multiples, non_multiples, fits) for a in op.arguments)
    return op.kind.multiplies and any(_is_multiple(a, n, multiples, non_multiples, fits) for a in op.arguments)


__all__ = ["is_multiple"]
