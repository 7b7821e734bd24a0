"""Bounds of floats, from constants, exponentials, sums and limits; and floats that are integral.

Bounds hold for results as they are rounded. A NaN lies within no bounds: callers handle it.

NaNs in f32 tiles: those that may have their sign bit set, and those that make a whole row NaN.

The integer maximum of a row would lose a NaN whose sign bit is set. Results of arithmetic and of products are NaNs with
a clear sign bit, or no NaNs. Memory may hold any NaN, and so may its negative; the compiler leaves out arithmetic that
changes no number, such as x * 1 and x + -0.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from operator import or_

from xdsl.ir import Block, Operation, SSAValue, Use

from ...checking.fact_solver import Rule, ValueFlow
from ...ops.traits import NEGATIVE, Traits
from ...syntax.types import I32
from ..ir import ops
from ..ir.ir_types import ScalarT, TensorT, TileT, dtype_of, is_tile
from ..ir.machine_ops import Pinned, RowBound
from ..ir.machine_tiles import After, Line, ReadColumns
from ..ir.operand_access import Function
from ..ir.row_parts import RowPart
from .value_flow import find_sources, find_targets, is_tile_wait

Range = tuple[float, float]
UNBOUNDED: Range = (-math.inf, math.inf)


def compute_float_range(value: SSAValue) -> Range:
    """Return the least and the greatest number that a scalar or an element of a tile may be."""
    flow = ValueFlow[SSAValue, Range](_join, lambda old, new: UNBOUNDED)
    flow.reach([value], _describe_range)
    return flow.solve().get(value, UNBOUNDED)


def _describe_range(value: SSAValue) -> tuple[Rule[Range], Sequence[SSAValue]]:
    """Return how the range of a value follows from those of others."""
    op = value.owner
    if isinstance(op, ops.Constant):
        number = float(op.value)
        constant = (number, number) if not math.isnan(number) else UNBOUNDED
        return lambda inputs: constant, ()
    inputs = find_sources(value)
    if inputs is not None and not is_tile_wait(op):
        return lambda inputs: functools.reduce(_join, [r for r in inputs if r is not None]) if any(inputs) else None, inputs
    if isinstance(op, ops.Apply) and _is_bounded(op.kind):
        return functools.partial(_apply_reached, op.kind), op.arguments
    return lambda inputs: UNBOUNDED, ()


def _apply_reached(of: Traits, inputs: Sequence[Range | None]) -> Range | None:
    """Compute the range of an operation once its operands have one."""
    operands = [r for r in inputs if r is not None]
    return _apply(of, operands) if len(operands) == len(inputs) else None


def _join(x: Range, y: Range) -> Range:
    return min(x[0], y[0]), max(x[1], y[1])


def _add(x: Range, y: Range) -> Range:
    return (x[0] + y[0] if -math.inf not in (x[0], y[0]) else -math.inf), (x[1] + y[1] if math.inf not in (x[1], y[1]) else math.inf)


def _negate(x: Range) -> Range:
    return -x[1], -x[0]


def _magnitude(x: Range) -> Range:
    return (0.0 if x[0] <= 0 <= x[1] else min(abs(x[0]), abs(x[1]))), max(abs(x[0]), abs(x[1]))


def _is_bounded(of: Traits) -> bool:
    """Return whether the operands' ranges bound the result."""
    return bool(of.linear or of.magnitude or of.exponential or of.extremum or of.chooses or of.repeats or of.logistic)


def _apply(of: Traits, operands: list[Range]) -> Range:
    """Compute the range of an operation on numbers of these ranges."""
    x = operands[0]
    if of.linear:
        return functools.reduce(_add, (r if by > 0 else _negate(r) for r, by in zip(operands, of.linear, strict=True)))
    if of.magnitude:
        return _magnitude(x)
    if of.exponential:
        return 0.0, float(of.exponential) ** min(x[1], 1000.0)  # what is small may be 0
    if of.extremum:
        least_or_greatest = min if of.extremum == "min" else max
        return least_or_greatest(r[0] for r in operands), least_or_greatest(r[1] for r in operands)
    if of.chooses:
        return _join(*operands[1:])
    return x if of.repeats else (-1.0, 1.0)


def is_integral(value: SSAValue) -> bool:
    """Return whether an f32 scalar, or every element of a tile, is integral, infinite or NaN.

    A finite one is 0 or at least 1 in magnitude.
    """
    op = value.owner
    if isinstance(op, ops.Constant):
        return float(op.value).is_integer()
    if isinstance(op, Line):
        return is_integral(op.slope) and (op.rows is None or is_integral(op.rows))
    if not isinstance(op, ops.Apply):
        return False
    kind = op.kind
    if kind.converts:
        return dtype_of(op.arguments[0]) == I32
    if kind.linear or kind.multiplies or kind.extremum or kind.magnitude or kind.repeats:
        return all(map(is_integral, op.arguments))
    return False


def _chooses(kind: Traits) -> bool:
    """Return whether the result is one of the operands."""
    return bool(kind.chooses or kind.extremum)


def _keeps_sign(kind: Traits) -> bool:
    """Return whether a NaN of the operand may come through with its sign."""
    return bool(kind.converts or kind.magnitude or kind.logistic or "max" in (kind.reduction, kind.column_reduction) or kind.repeats)


def _spreads(kind: Traits) -> bool:
    """Return whether a NaN in an operand gives one."""
    arithmetic = kind.linear or kind.multiplies or kind.divides_floats or kind.extremum or kind.magnitude
    return bool(arithmetic or kind.exponential or kind.logarithm or kind.logistic)


class Nans:
    """Values of a kernel that may hold a NaN with its sign bit set, found on demand, valid until the kernel changes."""

    def __init__(self) -> None:
        self._constant = _Members(_describe_constant)  # may be a number that the compiler knows, or a choice of such
        self._negative = _Members(self._describe_negative)

    def negative(self, value: SSAValue) -> bool:
        """Return whether a value may hold a NaN with its sign bit set."""
        return value in self._negative

    def _describe_negative(self, value: SSAValue) -> _Described:
        """Return how it follows that a value may hold a NaN with its sign bit set."""
        if not dtype_of(value).is_float:
            return _always(False)
        if (inputs := find_sources(value)) is not None:
            return any, inputs
        op = value.owner
        if not isinstance(op, ops.Apply):
            return self._describe_load(op)
        kind = op.kind
        if kind.linear == NEGATIVE:
            return _always(ops.constant_value(op.arguments[0]) is None)
        if _chooses(kind) or _keeps_sign(kind) or not _spreads(kind):  # the last: a function of which nothing is known
            return any, op.arguments
        if not kind.linear and not kind.multiplies:
            return _always(False)
        changes = [self._may_be_unchanged(op, i) for i in range(2)]
        if True in changes:
            return _always(True)
        return any, [op.arguments[i] for i in range(2) if changes[i] is None]

    def _describe_load(self, op: Operation | Block) -> _Described:
        """Return how it follows that a load or machine operation gives a NaN with its sign bit set."""
        if isinstance(op, ops.Parameter):
            return _always(True)
        if isinstance(op, ops.Perform):
            return _always(not op.entry.sums)  # read from memory; products make their NaNs
        # operations of the machine alone: reads of a tensor, arithmetic without known traits
        if not isinstance(op, Operation):
            return _always(False)
        return _always(True) if any(isinstance(v.type, TensorT) for v in op.operands) else (any, op.operands)

    def _may_be_unchanged(self, op: ops.Apply, i: int) -> bool | None:
        """Return whether x + c or x * c may become operand `i` or its negative, a NaN with its sign bit set.

        The compiler may leave out arithmetic with a known number c. None: if the operand may hold such a NaN.
        """
        factor = op.arguments[1 - i]
        if factor not in self._constant:
            return False
        negates = ops.constant_value(factor) in (None, -1) if op.kind.multiplies else op.kind.linear[i] < 0
        return True if negates else None


_Rule = Callable[[Sequence[bool | None]], bool]  # from the membership of a value's sources
_Described = tuple[_Rule, Sequence[SSAValue]]


class _Members:
    """The least set of numbers and tiles that is closed under the rules.

    A loop's value is in it because of its initial value, or because of the value of a turn.
    """

    def __init__(self, describe: Callable[[SSAValue], _Described]):
        self._describe, self._flow = describe, ValueFlow[SSAValue, bool](or_)

    def __contains__(self, value: SSAValue) -> bool:
        self._flow.reach([value], self._describe_number)
        return value in self._flow.solve()

    def _describe_number(self, value: SSAValue) -> tuple[Rule[bool], Sequence[SSAValue]]:
        if not isinstance(value.type, (ScalarT, TileT)):
            return lambda inputs: None, ()
        holds, sources = self._describe(value)
        return lambda inputs: holds(inputs) or None, sources


def _always(holds: bool) -> _Described:
    return lambda inputs: holds, ()


def _describe_constant(value: SSAValue) -> _Described:
    """Return how it follows that a value may be a number that the compiler knows, or a choice of such."""
    if (inputs := find_sources(value)) is not None:
        return any, inputs
    op = value.owner
    if not isinstance(op, ops.Apply):
        # reads outside of the tensor are 0
        is_read = isinstance(op, ReadColumns) or (isinstance(op, ops.Perform) and op.gathers)
        return _always(is_read or isinstance(op, ops.Constant))
    if op.kind.constant is not None:
        return _always(True)
    choice = _chooses(op.kind)
    candidates = [a for a in op.arguments if not choice or dtype_of(a) == dtype_of(value)]
    return any if choice else lambda inputs: bool(inputs) and all(inputs), candidates


def spoils_row(value: SSAValue) -> bool:
    """Return whether a NaN in a full tile makes all results of its row NaN.

    It does if the tile is summed, maximised or multiplied by rows, with arithmetic before.
    """
    worklist, visited = [value], {value}
    while worklist:
        for use in worklist.pop().uses:
            results = _spread_nan(use)
            if results is None:
                return False
            worklist += [v for v in results if v not in visited]
            visited.update(results)
    return True


def _spread_nan(use: Use) -> Sequence[SSAValue] | None:
    """Return the values into which a reader spreads a NaN of its operand element by element.

    None are returned if it goes into whole rows; None if the reader may lose it.
    """
    op = use.operation
    if (values := find_targets(use)) or isinstance(op, ops.Yield):
        return values
    if isinstance(op, ops.Apply):
        if op.entry.reduces:
            return []
        converts = op.kind.converts and dtype_of(op.result).is_float
        return [op.result] if is_tile(op.result) and (converts or _spreads(op.kind)) else None
    if isinstance(op, Function) and op.ELEMENTWISE:
        return list(op.results)  # arithmetic
    if isinstance(op, (RowPart, RowBound, Pinned, After)):
        return []  # whole rows, votes that only save time, and values pinned before a wait
    if isinstance(op, ops.Perform) and op.entry.sums:  # a product spreads "a" over rows, the accumulator by elements
        name = op.params.data[use.index].data
        return {"a": [], "c": list(op.outputs)}.get(name)
    return None


__all__ = ["UNBOUNDED", "Nans", "Range", "compute_float_range", "is_integral", "spoils_row"]
