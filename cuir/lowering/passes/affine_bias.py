"""A tile plus a line is kept without the part of the line that is alike along a row, where all that reads it can do without.

`S = X + (rows + slope * column)` is kept as X + slope * column, and the number a row beside it: two operations an element less than the sum. The maximum of
its rows is that of what is kept plus the shift (rounding is monotone, so it is the maximum of the sums), and in exp2(S * f - v) the shift goes into the number
a row that is added there anyway. Masked elements, -inf, stay what they are, so masks and branches on them pass the shift on. What is kept in place of S differs
by a few roundings of the largest term.
"""

from __future__ import annotations

import math

from xdsl.ir import Operation, SSAValue, Use

from ...ops.traits import DIFFERENCE, SUM
from ...syntax.types import F32
from ..ir import make, ops
from ..ir.machine import note
from ..ir.machine_tiles import Line, alike_along_rows, line, pin
from ..ir.types import TileT, dtype_of, tile
from ..ir.walk import every, last
from ..ir.warps import RowBound
from .affine_tiles import type_of_rows
from .rewriting import before, insert, replace
from .simplify import number

ROUNDING = True
Step = tuple[ops.Apply, int]  # an operation, and which operand of it is followed


def run(kernel: ops.Kernel) -> None:
    for op in every(kernel):
        if isinstance(op, ops.Apply) and op.kind.linear in (SUM, DIFFERENCE) and op.exact is None:
            _sum(op)


def _sum(op: ops.Apply) -> None:
    t = op.result.type
    i = next((i for i, a in enumerate(op.arguments) if isinstance(a.owner, Line)), None)
    if i is None or not isinstance(t, TileT) or t.element != F32 or t.layout.data != "full" or op.arguments[1 - i].type != t:
        return
    bias, readers = op.arguments[i].owner, _Readers(op.result)
    assert isinstance(bias, Line)
    if bias.rows is None or not readers.all_can:
        return
    shift = bias.rows if op.kind.linear[i] == 1 else insert(op, make.negate(bias.rows, bias.rows.type))
    before(op, note("what a bias adds alike along a row is kept apart, as one number a row"))
    if isinstance(shift.type, TileT):  # elsewhere its parts cost registers at the wrong place, and a spill
        shift = insert(op, pin(shift))
        shift.name_hint = "shift"
    columns = insert(op, line(bias.slope, None, tile(F32, 1, t.shape[1])))
    arguments = [columns if k == i else a for k, a in enumerate(op.arguments)]
    replace(op, [insert(op, make.of_kind(op, arguments, t))])
    for reader in readers.maxima:
        _add_to_maximum(reader, shift)
    for steps, exponential in readers.exponentials:
        _add_to_exponent(steps, exponential, shift)


class _Readers:
    """What reads a tile and the tiles that masks and branches make of it. `all_can`: none needs more than the tile less a number a row."""

    def __init__(self, value: SSAValue):
        self.maxima: list[Operation] = []
        self.exponentials: list[tuple[list[Step], ops.Apply]] = []  # the operations up to the exponential, and that
        self.shifted: set[SSAValue] = {value}
        self.branches: set[ops.Branch] = set()
        left = [value]
        self.all_can = True
        while left and self.all_can:
            for use in list(left.pop().uses):
                new = self._passed_on(use)
                if new is not None:
                    if new not in self.shifted:
                        self.shifted.add(new)
                        left.append(new)
                elif not self._reads(use, []):
                    self.all_can = False
        self.all_can &= bool(self.maxima or self.exponentials) and all(self._agree(b) for b in self.branches)

    def _passed_on(self, use: Use) -> SSAValue | None:
        """The value that has the same shift: of a mask, or of a branch that yields it."""
        op = use.operation
        if isinstance(op, ops.Apply) and op.kind.chooses and use.index in (1, 2):
            other = number(op.arguments[3 - use.index])
            return op.result if other == -math.inf and op.exact is None else None
        if isinstance(op, ops.Yield) and isinstance(branch := op.parent_op(), ops.Branch):
            self.branches.add(branch)
            return branch.results[use.index]
        return None

    def _agree(self, branch: ops.Branch) -> bool:
        """Whether both regions of a branch yield what has the shift, or nothing but -inf."""
        for i, result in enumerate(branch.results):
            if result in self.shifted:
                yielded = [last(r).values[i] for r in (branch.then, branch.orelse)]
                if not all(v in self.shifted or number(v) == -math.inf for v in yielded):
                    return False
        return True

    def _reads(self, use: Use, steps: list[Step]) -> bool:
        """Whether a maximum of rows reads it, or exponentials alone of what sums and products with numbers a row make of it."""
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
        others = [a for k, a in enumerate(op.arguments) if k != use.index]
        uses = list(op.result.uses)
        return all(map(alike_along_rows, others)) and bool(uses) and all(self._reads(u, [*steps, (op, use.index)]) for u in uses)


def _add_to_maximum(op: Operation, shift: SSAValue) -> None:
    """Of a maximum or a bound of it: a threshold above each thread's shifted bound is above the shifted maximum."""
    maximum = insert(op, op.clone())
    replace(op, [insert(op, make.add(maximum, shift, maximum.type))])


def _add_to_exponent(steps: list[Step], op: ops.Apply, shift: SSAValue) -> None:
    """exp2 of e(kept) becomes that of factor * kept + e(shift): e is a line in what it is made of."""
    x: SSAValue = steps[0][0].arguments[steps[0][1]] if steps else op.arguments[0]
    factor: SSAValue | None = None
    negative = False
    for step, i in steps:
        others = [a for k, a in enumerate(step.arguments) if k != i]
        given = [shift if k == i else a for k, a in enumerate(step.arguments)]
        shift = insert(op, make.of_kind(step, given, type_of_rows(*given)))
        if step.kind.multiplies:
            factor = others[0] if factor is None else insert(op, make.multiply(factor, others[0], type_of_rows(factor, others[0])))
        elif step.kind.linear[i] < 0:
            negative = not negative
    t = op.result.type
    if factor is not None:
        x = insert(op, make.multiply(x, factor, t))
    exponent = insert(op, make.subtract(shift, x, t) if negative else make.add(x, shift, t))
    replace(op, [insert(op, make.exp2(exponent, t))])
