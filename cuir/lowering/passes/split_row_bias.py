"""Split off the part of a bias that is the same along a row, where all readers can do without it.

A bias rows[r] + slope * column has a part rows[r] that is the same along a row. The pass adds this part to the maximum
and exponent of the row instead of to each score. The result differs by a few roundings of the largest term.

This saves two operations an element of S, and of exp2(S * f - v). Masked elements, -inf, are unchanged.
"""

from __future__ import annotations

import math

from xdsl.ir import Operation, SSAValue, Use

from ...ops.traits import DIFFERENCE, SUM
from ...syntax.types import F32
from ..ir import constructors, ops
from ..ir.ir_types import TileT, broadcast, dtype_of, tile
from ..ir.ir_walk import every, last
from ..ir.machine_ops import RowBound, note
from ..ir.machine_tiles import Line, is_constant_along_rows, line, pin
from ..ir.ops import number
from .rewriting import before, insert, replace

ROUNDING = True
Step = tuple[ops.Apply, int]  # an operation, and the index of the operand that is followed


def run(kernel: ops.Kernel) -> None:
    """Rewrite the sums with a bias whose readers can do without its number per row."""
    for op in every(kernel):
        if isinstance(op, ops.Apply) and op.kind.linear in (SUM, DIFFERENCE) and op.exact is None:
            _rewrite_sum(op)


def _rewrite_sum(op: ops.Apply) -> None:
    """Rewrite one sum or difference, if it is such."""
    t = op.result.type
    i = next((i for i, a in enumerate(op.arguments) if isinstance(a.owner, Line)), None)
    if i is None or not isinstance(t, TileT) or t.element != F32 or not t.layout.is_accumulator or op.arguments[1 - i].type != t:
        return
    bias, readers = op.arguments[i].owner, _ShiftReaders(op.result)
    assert isinstance(bias, Line)
    if bias.rows is None or not readers.all_shiftable:
        return
    shift = bias.rows if op.kind.linear[i] == 1 else insert(op, constructors.negate(bias.rows, bias.rows.type))
    before(op, note("what a bias adds alike along a row is kept apart, as one number a row"))
    if isinstance(shift.type, TileT):  # computed elsewhere, its parts take registers there, and spill
        shift = insert(op, pin(shift))
        shift.name_hint = "shift"
    columns = insert(op, line(bias.slope, None, tile(F32, 1, t.shape[1])))
    arguments = [columns if k == i else a for k, a in enumerate(op.arguments)]
    replace(op, [insert(op, constructors.of_kind(op, arguments, t))])
    for reader in readers.maxima:
        _add_to_maximum(reader, shift)
    for steps, exponential in readers.exponentials:
        _add_to_exponent(steps, exponential, shift)


class _ShiftReaders:
    """The readers of a tile, and of the tiles that masks and branches make of it.

    `all_shiftable`: none needs more than the tile less a number per row.
    """

    def __init__(self, value: SSAValue):
        self.maxima: list[Operation] = []
        self.exponentials: list[tuple[list[Step], ops.Apply]] = []  # the operations up to the exponential, and that
        self.shifted: set[SSAValue] = {value}
        self.branches: set[ops.Branch] = set()
        worklist = [value]
        self.all_shiftable = True
        while worklist and self.all_shiftable:
            for use in list(worklist.pop().uses):
                successor = self._find_shifted_result(use)
                if successor is not None:
                    if successor not in self.shifted:
                        self.shifted.add(successor)
                        worklist.append(successor)
                elif not self._is_shiftable(use, []):
                    self.all_shiftable = False
        self.all_shiftable &= bool(self.maxima or self.exponentials) and all(self._yields_shift(b) for b in self.branches)

    def _find_shifted_result(self, use: Use) -> SSAValue | None:
        """Return the value that has the same shift: the result of a mask, or of a branch that yields it."""
        op = use.operation
        if isinstance(op, ops.Apply) and op.kind.chooses and use.index in (1, 2):
            alternative = number(op.arguments[3 - use.index])
            return op.result if alternative == -math.inf and op.exact is None else None
        if isinstance(op, ops.Yield) and isinstance(branch := op.parent_op(), ops.Branch):
            self.branches.add(branch)
            return branch.results[use.index]
        return None

    def _yields_shift(self, branch: ops.Branch) -> bool:
        """Return whether both regions of a branch yield values with the shift, or only -inf."""
        for i, result in enumerate(branch.results):
            if result in self.shifted:
                values = [last(r).values[i] for r in (branch.then, branch.orelse)]
                if not all(v in self.shifted or number(v) == -math.inf for v in values):
                    return False
        return True

    def _is_shiftable(self, use: Use, steps: list[Step]) -> bool:
        """Return whether a use ends in a maximum of rows, or in exponentials alone.

        Between the value and an exponential there may be sums and products with numbers per row.
        """
        op = use.operation
        if isinstance(op, RowBound) or (isinstance(op, ops.Apply) and op.kind.reduction == "max"):
            self.maxima.append(op)
            return not steps
        if not isinstance(op, ops.Apply) or op.exact is not None:
            return False
        if op.kind.exponential == 2:
            self.exponentials.append((steps, op))
            return True
        if not (op.kind.linear or op.kind.multiplies) or dtype_of(op.result) != F32:
            return False
        other_operands = [a for k, a in enumerate(op.arguments) if k != use.index]
        uses = list(op.result.uses)
        return (
            all(map(is_constant_along_rows, other_operands))
            and bool(uses)
            and all(self._is_shiftable(u, [*steps, (op, use.index)]) for u in uses)
        )


def _add_to_maximum(op: Operation, shift: SSAValue) -> None:
    """Add the shift to a maximum, or to a bound of it.

    A threshold above each thread's shifted bound is above the shifted maximum.
    """
    maximum = insert(op, op.clone())
    replace(op, [insert(op, constructors.add(maximum, shift, maximum.type))])


def _add_to_exponent(steps: list[Step], op: ops.Apply, shift: SSAValue) -> None:
    """Replace exp2(e(kept)) by exp2(factor * kept + e(shift)), where e is linear."""
    x: SSAValue = steps[0][0].arguments[steps[0][1]] if steps else op.arguments[0]
    factor: SSAValue | None = None
    negative = False
    for step, i in steps:
        other_operands = [a for k, a in enumerate(step.arguments) if k != i]
        operands = [shift if k == i else a for k, a in enumerate(step.arguments)]
        shift = insert(op, constructors.of_kind(step, operands, broadcast(F32, *operands)))
        if step.kind.multiplies:
            factor = (
                other_operands[0]
                if factor is None
                else insert(op, constructors.multiply(factor, other_operands[0], broadcast(F32, factor, other_operands[0])))
            )
        elif step.kind.linear[i] < 0:
            negative = not negative
    t = op.result.type
    if factor is not None:
        x = insert(op, constructors.multiply(x, factor, t))
    exponent = insert(op, constructors.subtract(shift, x, t) if negative else constructors.add(x, shift, t))
    replace(op, [insert(op, constructors.exp2(exponent, t))])
