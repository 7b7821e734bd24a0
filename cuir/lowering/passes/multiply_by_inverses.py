"""Replace divisions of nonnegative i32 numbers by unsigned ones, or by products with an inverse.

The kernel computes the inverse of a divisor once per launch, and multiplies by this inverse. Divisions by powers of
two stay shifts and masks.

The same is done for dividends of unknown sign that are far from the ends of 32 bits. A division whose dividend is
constant, too, is hoisted itself. Workers on one lane keep divisions.
"""

from __future__ import annotations

from xdsl.ir import Block, Operation, SSAValue

from ...syntax.types import BOOL, I32
from ..analyses.memory import is_speculatable
from ..analyses.ranges import UNBOUNDED, Range, analyse_ranges
from ..analyses.uniformity import Uniformity, compute_uniformity, runs_on_one_lane
from ..ir import constructors, ops
from ..ir import machine_ops as machine
from ..ir.ir_types import is_scalar, scalar
from ..ir.ir_walk import every, operations


def run(kernel: ops.Kernel) -> None:
    """Rewrite the divisions of all roles and of the queue."""
    facts = _Facts(kernel)
    for op in kernel.body.block.ops:
        if isinstance(op, ops.Role):
            _Divisions(facts, op.body.block, inverses=not runs_on_one_lane(op)).run()
        elif isinstance(op, machine.Queue):
            _Divisions(facts, op.body.block, inverses=True).run()


class _Facts:
    """Facts about dividends and divisors before the pass; `originals` maps new values to those that they replace."""

    def __init__(self, kernel: ops.Kernel):
        divisions = (op for op in every(kernel) if isinstance(op, ops.Apply) and op.kind.divides_integers)
        operands = [a for op in divisions for a in op.arguments]
        ranges, self.uniformity = analyse_ranges(kernel), compute_uniformity(operands)
        self.ranges = {a: ranges[a] for a in operands}
        self.originals: dict[SSAValue, SSAValue] = {}

    def nonnegative(self, value: SSAValue) -> bool:
        return self._find_range(value).least >= 0

    def near_ends(self, value: SSAValue) -> bool:
        return self._find_range(value).reaches

    def _find_range(self, value: SSAValue) -> Range:
        return self.ranges.get(self.originals.get(value, value), UNBOUNDED)

    def is_uniform_in_cta(self, value: SSAValue) -> bool:
        """Return whether a value is the same in a CTA during the whole launch."""
        return self.uniformity[self.originals.get(value, value)] in (Uniformity.LAUNCH, Uniformity.CTA)


class _Divisions:
    """The divisions of a role, or of a queue's body.

    Inverses and their operands go before the statement of `block` that needs the first one.
    """

    def __init__(self, facts: _Facts, block: Block, inverses: bool):
        self.facts, self.block, self.inverses = facts, block, inverses
        self.inverse_by_divisor: dict[SSAValue, SSAValue] = {}  # divisor -> inverse
        self.magnitudes: dict[SSAValue, SSAValue] = {}  # divisor -> inverse of its magnitude
        self.movable_values: dict[tuple[SSAValue, bool], bool] = {}

    def run(self) -> None:
        for top in operations(self.block):
            for op in [top, *every(top)]:
                if isinstance(op, ops.Apply) and op.kind.divides_integers:
                    if all(map(self.facts.nonnegative, op.arguments)):
                        self.rewrite_division(op, top)
                    else:
                        self.rewrite_signed_division(op, top)

    def rewrite_division(self, op: ops.Apply, top: Operation) -> None:
        """Rewrite a division of nonnegative numbers."""
        x, y = op.arguments
        constant = ops.constant_value(y)
        if constant == 1 or (isinstance(constant, int) and constant > 0 and constant & (constant - 1) == 0 and op.kind.rounds != "up"):
            return
        hoisted = self.inverses and constant is None and all(self.facts.is_uniform_in_cta(v) and self._is_movable(v) for v in (x, y))
        inverse = self.inverse(y, top) if self.inverses and constant is None and not hoisted else None
        quotient = machine.division(op.kind, x, y, op.result.type, inverse)
        self._replace(op, quotient)
        if hoisted:
            self._move(quotient.result, top)

    def rewrite_signed_division(self, op: ops.Apply, top: Operation) -> None:
        """Rewrite a division of a tile by a constant divisor, both of any sign."""
        x, y = op.arguments
        if is_scalar(x) or not self.inverses or op.kind.rounds == "up" or ops.constant_value(y) is not None or self.facts.near_ends(x):
            return
        if y not in self.magnitudes:
            if not is_scalar(y) or not self.facts.is_uniform_in_cta(y) or not self._is_movable(y, guarded=True):
                return
            self._move(y, top)
            opposite = constructors.negate(y, y.type)
            self.block.insert_op_before(opposite, top)
            magnitude = constructors.greatest(y, opposite.result, y.type)
            self.block.insert_op_before(magnitude, top)
            inverse = machine.inverse(magnitude.result)
            inverse.result.name_hint = "inverse"
            self.block.insert_op_before(inverse, top)
            self.magnitudes[y] = inverse.result
        self._replace(op, machine.division(op.kind, x, y, op.result.type, self.magnitudes[y], signed=True))

    def _replace(self, op: ops.Apply, new: machine.Quotient | machine.Remainder) -> None:
        new.location, new.result.name_hint = op.location, op.result.name_hint
        self.facts.originals[new.result] = op.result
        block = op.parent_block()
        assert block is not None
        block.insert_op_before(new, op)
        op.result.replace_all_uses_with(new.result)
        op.detach()
        op.erase()

    def inverse(self, y: SSAValue, top: Operation) -> SSAValue | None:
        """Return the inverse of a divisor, inserted before `top`; None if it is not uniform."""
        if y not in self.inverse_by_divisor:
            if not is_scalar(y) or not self.facts.is_uniform_in_cta(y) or not self._is_movable(y):
                return None
            self._move(y, top)
            result = machine.inverse(y)
            result.result.name_hint = "inverse"
            self.block.insert_op_before(result, top)
            self.inverse_by_divisor[y] = result.result
        return self.inverse_by_divisor[y]

    # ---- hoisting of a divisor's operands before `top`
    def _is_outside(self, value: SSAValue) -> bool:
        """Return whether a value is defined outside of every loop and branch of the block."""
        owner = value.owner
        block = owner if isinstance(owner, Block) else owner.parent_block()
        return block is self.block or isinstance(block.parent_op() if block else None, ops.Kernel)

    def _is_movable(self, value: SSAValue, guarded: bool = False) -> bool:
        """Return whether a value can be hoisted out of every loop and branch.

        It is speculatable then: no division by 0 and no read outside of a tensor where the program does not compute it.
        With `guarded`, a division by an unknown number is speculatable too, as `_move` never lets it divide by 0.
        """
        key = value, guarded
        if key not in self.movable_values:
            self.movable_values[key] = self._is_outside(value) or self._is_operation_movable(value.owner, guarded)
        return self.movable_values[key]

    def _is_operation_movable(self, op: Operation | Block, guarded: bool) -> bool:
        """Return whether an operation and its operands can be hoisted."""
        if not isinstance(op, Operation):
            return False
        divides = isinstance(op, ops.Apply) and op.kind.divides_integers
        return (is_speculatable(op) or (guarded and divides)) and all(self._is_movable(x, guarded) for x in op.operands)

    def _move(self, value: SSAValue, top: Operation) -> None:
        if self._is_outside(value):
            return
        op = value.owner
        assert isinstance(op, Operation)
        for operand in op.operands:
            self._move(operand, top)
        if isinstance(op, ops.Apply) and op.kind.divides_integers and not ops.constant_value(op.arguments[1]):
            op.operands[1] = self._nonzero(op.arguments[1], top)
        op.detach()
        self.block.insert_op_before(op, top)

    def _nonzero(self, y: SSAValue, top: Operation) -> SSAValue:
        """Insert before `top` a divisor that is 1 in place of 0, and return it.

        It has the same value wherever the program divides by it.
        """
        zero, unit = (ops.constant(n, I32) for n in (0, 1))
        test = constructors.equal(y, zero.result, scalar(BOOL))
        chosen = constructors.choose(test.result, unit.result, y, y.type)
        for new in (zero, unit, test, chosen):
            self.block.insert_op_before(new, top)
        return chosen.result


__all__ = ["run"]
