"""Which scalars are multiples of a number, by the data flow alone."""

from __future__ import annotations

from collections.abc import Callable

from xdsl.ir import BlockArgument, SSAValue

from ..ir import ops
from .flow import sources

Fits = Callable[[SSAValue], bool]


def multiple(value: SSAValue, n: int, fits: Fits | None = None) -> bool:
    """Whether an i32 scalar is a multiple of `n`. fits: whether arithmetic stays within 32 bits, as that of multiples of other numbers than powers of two must."""
    if n & (n - 1) == 0:
        fits = None  # what wraps stays a multiple
    elif fits is None:
        raise ValueError(f"{n} is no power of two")
    none: set[SSAValue] = set()
    while True:  # what depends on itself is taken for a multiple until it is found to be none
        multiples: dict[SSAValue, bool] = {}
        if not _multiple(value, n, multiples, none, fits):
            return False
        more = {v for v, holds in multiples.items() if not holds} - none
        if not more:
            return True
        none |= more


def _multiple(value: SSAValue, n: int, multiples: dict[SSAValue, bool], none: set[SSAValue], fits: Fits | None) -> bool:
    if value not in multiples:
        multiples[value] = value not in none
        multiples[value] &= _follows(value, n, multiples, none, fits)
    return multiples[value]


def _follows(value: SSAValue, n: int, multiples: dict[SSAValue, bool], none: set[SSAValue], fits: Fits | None) -> bool:
    known, op = ops.known(value), value.owner
    if known is not None:
        return int(known) % n == 0
    if (given := sources(value)) is not None:
        return all(_multiple(v, n, multiples, none, fits) for v in given)
    if isinstance(value, BlockArgument):
        loop = value.block.parent_op()
        return isinstance(loop, ops.For) and loop.step.data % n == 0 and _multiple(loop.start, n, multiples, none, fits)
    if not isinstance(op, ops.Apply) or (fits is not None and not fits(value)):
        return False
    if op.kind.linear:
        return all(_multiple(a, n, multiples, none, fits) for a in op.arguments)
    return op.kind.multiplies and any(_multiple(a, n, multiples, none, fits) for a in op.arguments)


__all__ = ["multiple"]
