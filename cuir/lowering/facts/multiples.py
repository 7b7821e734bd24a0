"""Which scalars are multiples of a number, by the data flow alone."""

from __future__ import annotations

from xdsl.ir import BlockArgument, SSAValue

from ..ir import ops
from .flow import sources


def multiple(value: SSAValue, n: int, assumed: frozenset[SSAValue] = frozenset()) -> bool:
    """Whether an i32 scalar is a multiple of `n`, a power of two (so that 32 bits keep it one). assumed: values that are, if the others are."""
    if value in assumed:
        return True
    known, op = ops.known(value), value.owner
    if known is not None:
        return int(known) % n == 0
    within = assumed | {value}
    if (given := sources(value)) is not None:
        return all(multiple(v, n, within) for v in given)
    if isinstance(value, BlockArgument):
        loop = value.block.parent_op()
        return isinstance(loop, ops.For) and loop.step.data % n == 0 and multiple(loop.start, n, assumed)
    if not isinstance(op, ops.Apply):
        return False
    if op.kind.linear:
        return all(multiple(a, n, assumed) for a in op.arguments)
    return op.kind.multiplies and any(multiple(a, n, assumed) for a in op.arguments)


__all__ = ["multiple"]
