"""Which scalars are multiples of a number, by the data flow alone."""

from __future__ import annotations

from xdsl.ir import BlockArgument, SSAValue

from ..ir import ops
from .flow import sources


def multiple(value: SSAValue, n: int) -> bool:
    """Whether an i32 scalar is a multiple of `n`, a power of two (so that 32 bits keep it one)."""
    none: set[SSAValue] = set()
    while True:  # what depends on itself is taken for a multiple until it is found to be none
        multiples: dict[SSAValue, bool] = {}
        if not _multiple(value, n, multiples, none):
            return False
        more = {v for v, holds in multiples.items() if not holds} - none
        if not more:
            return True
        none |= more


def _multiple(value: SSAValue, n: int, multiples: dict[SSAValue, bool], none: set[SSAValue]) -> bool:
    if value not in multiples:
        multiples[value] = value not in none
        multiples[value] &= _follows(value, n, multiples, none)
    return multiples[value]


def _follows(value: SSAValue, n: int, multiples: dict[SSAValue, bool], none: set[SSAValue]) -> bool:
    known, op = ops.known(value), value.owner
    if known is not None:
        return int(known) % n == 0
    if (given := sources(value)) is not None:
        return all(_multiple(v, n, multiples, none) for v in given)
    if isinstance(value, BlockArgument):
        loop = value.block.parent_op()
        return isinstance(loop, ops.For) and loop.step.data % n == 0 and _multiple(loop.start, n, multiples, none)
    if not isinstance(op, ops.Apply):
        return False
    if op.kind.linear:
        return all(_multiple(a, n, multiples, none) for a in op.arguments)
    return op.kind.multiplies and any(_multiple(a, n, multiples, none) for a in op.arguments)


__all__ = ["multiple"]
