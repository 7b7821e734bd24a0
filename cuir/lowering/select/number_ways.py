"""Ways of operations on numbers that depend on the values: divisions of integers, functions of whole numbers.

Marks say where integers stay within 32 bits, so that a sum need not wrap and a limit need not be saturated.
"""

from __future__ import annotations

from xdsl.dialects.builtin import UnitAttr
from xdsl.ir import Operation

from ...ops.traits import BELOW
from ...syntax.types import I32
from ..analyses import Facts
from ..analyses.alignment import begins_panel
from ..analyses.float_ranges import is_integral
from ..analyses.memory import array_of
from ..analyses.stores import is_panelled
from ..ir import ops
from ..ir.ir_types import SharedT, dtype_of
from ..ir.row_parts import LimitOf
from .ways import Verdict, Ways, fits, misfits

WAYS = Ways()
UNSIGNED, WHOLE = "unsigned", "of a whole number"
NEAR = "near"  # mark of i32 arithmetic that stays within 32 bits
FAR = ("far_x", "far_y")  # marks of an operation whose first or second operand is far from the ends of 32 bits
PANEL = "begins_panel"  # mark of a view of panels whose first column is that of a panel
_MARK = UnitAttr()


@WAYS.way("divide", UNSIGNED)
def divide_unsigned(op: ops.Apply, values: Facts) -> Verdict:
    """Divide as unsigned numbers."""
    return fits("no operand is negative") if all(map(values.nonnegative, op.arguments)) else misfits("an operand may be negative")


@WAYS.way("divide", "signed")
def divide_signed(op: ops.Apply, values: Facts) -> Verdict:
    """Divide as signed numbers, and correct what is rounded to 0."""
    return fits("results are rounded down or up, and an instruction rounds them to 0")


@WAYS.way("logarithm or root", WHOLE)
def compute_of_whole(op: ops.Apply, values: Facts) -> Verdict:
    """Compute a logarithm or a root of a number that is neither subnormal nor negative."""
    return fits("the argument is a whole number") if is_integral(op.arguments[0]) else misfits("the argument may have a fraction")


@WAYS.way("logarithm or root", "of any number")
def compute_of_any(op: ops.Apply, values: Facts) -> Verdict:
    """Compute a logarithm or a root of any number."""
    return fits("arguments that are subnormal or negative take further instructions")


def find_number_step(op: Operation) -> str | None:
    """Return the step of an operation on numbers, None if it is done in one way."""
    if not isinstance(op, ops.Apply):
        return None
    if op.kind.logarithm or op.kind.root:
        return "logarithm or root"
    return "divide" if op.kind.divides_integers and dtype_of(op.result) == I32 else None


def mark_bounds(op: Operation, values: Facts) -> None:
    """Mark arithmetic that need not wrap, operands that are far from the ends of 32 bits, and views that begin a panel."""
    for name in (NEAR, *FAR, PANEL):
        op.attributes.pop(name, None)
    if isinstance(op, ops.Apply):
        if values.near(op):
            op.attributes[NEAR] = _MARK
        if (op.kind.extremum or op.kind.compares in BELOW) and dtype_of(op.arguments[0]) == I32:
            op.attributes.update({far: _MARK for far, x in zip(FAR, op.arguments, strict=True) if not values.near_ends(x)})
    elif isinstance(op, LimitOf):
        if not values.near_ends(op.x):
            op.attributes[FAR[0]] = _MARK
    elif isinstance(op, ops.At) and isinstance(op.result.type, SharedT) and op.parts[-1][0] is not None:
        array = array_of(op.result)
        if isinstance(array, ops.Shared) and is_panelled(array) and begins_panel(op.result):
            op.attributes[PANEL] = _MARK
