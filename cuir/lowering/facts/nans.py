"""NaNs in f32 tiles: which may have their sign bit set, so that the integer maximum of a row would lose them; of which the whole row becomes NaN anyway.

Results of arithmetic and of products are NaNs with a clear sign bit, or no NaNs. What lies in memory may be any, and so may its negative; the compiler leaves
out arithmetic that changes no number, such as x * 1 and x + -0.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Block, Operation, SSAValue, Use

from ...ops.traits import NEGATIVE, Traits
from ..ir import ops
from ..ir.function import Function
from ..ir.machine_tiles import After, ReadColumns
from ..ir.rows import RowPart
from ..ir.types import ScalarT, TensorT, TileT, dtype_of, is_tile
from ..ir.walk import every
from ..ir.warps import Pinned, RowBound
from .flow import sources, targets


def _chooses(of: Traits) -> bool:
    """Whether the result is one of the operands."""
    return bool(of.chooses or of.extremum)


def _keeps_sign(of: Traits) -> bool:
    """Whether a NaN of the operand may come through with its sign."""
    return bool(of.converts or of.magnitude or of.logistic or "max" in (of.reduction, of.column_reduction) or of.repeats)


def _spreads(of: Traits) -> bool:
    """Whether a NaN in an operand gives one."""
    arithmetic = of.linear or of.multiplies or of.divides_floats or of.extremum or of.magnitude
    return bool(arithmetic or of.exponential or of.logarithm or of.logistic)


class Nans:
    """Which values of a kernel may hold a NaN with its sign bit set. Holds as long as the kernel is not changed."""

    def __init__(self, kernel: ops.Kernel):
        self._constant: set[SSAValue] = set()  # may be a number that the compiler knows, or what a choice makes of one
        self._negative: set[SSAValue] = set()
        values = [v for op in every(kernel) for v in (*op.results, *(a for r in op.regions for a in r.block.args)) if _numbers(v)]
        self._grow(self._constant, values, self._may_be_constant)
        self._grow(self._negative, [v for v in values if dtype_of(v).is_float], self._may_be_negative)

    def negative(self, value: SSAValue) -> bool:
        """Whether a value may hold a NaN with its sign bit set."""
        return value in self._negative

    def _grow(self, members: set[SSAValue], values: Sequence[SSAValue], holds: object) -> None:
        """The least set for which `holds` asks nothing more: a loop's value is in it for what it starts with, or for what a turn makes."""
        more = True
        while more:
            before = len(members)
            members.update(v for v in values if v not in members and holds(v))  # type: ignore[operator]
            more = len(members) > before

    def _may_be_constant(self, value: SSAValue) -> bool:
        if (given := sources(value)) is not None:
            return any(v in self._constant for v in given)
        op = value.owner
        if not isinstance(op, ops.Apply):
            read = isinstance(op, ReadColumns) or (isinstance(op, ops.Perform) and op.gathers)  # outside of the tensor it is 0
            return read or isinstance(op, ops.Constant)
        if op.kind.constant is not None:
            return True
        choice = _chooses(op.kind)
        chosen = [a in self._constant for a in op.arguments if not choice or dtype_of(a) == dtype_of(value)]
        return bool(chosen) and (any(chosen) if choice else all(chosen))

    def _may_be_negative(self, value: SSAValue) -> bool:
        if (given := sources(value)) is not None:
            return any(v in self._negative for v in given)
        op = value.owner
        if not isinstance(op, ops.Apply):
            return self._made_negative(op)
        of = op.kind
        if of.linear == NEGATIVE:
            return ops.known(op.arguments[0]) is None
        if _chooses(of) or _keeps_sign(of) or not _spreads(of):  # the last: a function of which nothing is known
            return any(a in self._negative for a in op.arguments)
        return bool(of.linear or of.multiplies) and any(self._unchanged(op, i) for i in range(2))

    def _made_negative(self, op: Operation | Block) -> bool:
        """Of what is no arithmetic of the table."""
        if isinstance(op, ops.Parameter):
            return True
        if isinstance(op, ops.Perform):
            return not op.entry.sums  # read from memory; products make their NaNs
        # what only the machine has: reads of a tensor, arithmetic of which nothing more is known
        return isinstance(op, Operation) and any(v in self._negative or isinstance(v.type, TensorT) for v in op.operands)

    def _unchanged(self, op: ops.Apply, i: int) -> bool:
        """Whether arithmetic with a known number may be operand `i` itself with its sign bit set, or its negative."""
        value, other = op.arguments[i], op.arguments[1 - i]
        if other not in self._constant:
            return False
        turned = ops.known(other) in (None, -1) if op.kind.multiplies else op.kind.linear[i] < 0
        return turned or value in self._negative


def _numbers(value: SSAValue) -> bool:
    return isinstance(value.type, (ScalarT, TileT))


def spoils_row(value: SSAValue) -> bool:
    """Whether all that comes of a row of this full tile is NaN as soon as one of its elements is: it is summed, maximised or multiplied by rows, with arithmetic
    before."""
    left, seen = [value], {value}
    while left:
        for use in left.pop().uses:
            given = _spread(use)
            if given is None:
                return False
            left += [v for v in given if v not in seen]
            seen.update(given)
    return True


def _spread(use: Use) -> Sequence[SSAValue] | None:
    """The values into which a reader spreads a NaN of its operand element by element; none if it goes into whole rows; None if the reader may lose it."""
    op = use.operation
    if (given := targets(use)) or isinstance(op, ops.Yield):
        return given
    if isinstance(op, ops.Apply):
        if op.entry.reduces:
            return []
        kept = op.kind.converts and dtype_of(op.result).is_float
        return [op.result] if is_tile(op.result) and (kept or _spreads(op.kind)) else None
    if isinstance(op, Function) and op.ELEMENTWISE:
        return list(op.results)  # arithmetic
    if isinstance(op, (RowPart, RowBound, Pinned, After)):
        return []  # whole rows, votes that only save time, and what stays before a wait
    if isinstance(op, ops.Perform) and op.entry.sums:  # a product: its left operand goes by rows, its accumulator by elements
        name = op.params.data[use.index].data
        return {"a": [], "c": list(op.outputs)}.get(name)
    return None


__all__ = ["Nans", "spoils_row"]
