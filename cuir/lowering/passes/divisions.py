"""Division of i32 numbers that are not negative is unsigned; by a divisor that is the same all through the launch it is a product with an inverse made once.

Of numbers whose signs nobody knows, but which are far from the ends of 32 bits, so is division by such a divisor, with the inverse of its magnitude.

A division of a dividend that never changes either is done once itself. Where a worker runs on one lane, none of this: it has time to divide, and few registers. Shifts and masks by a power of two stay as they are.
"""

from __future__ import annotations

from xdsl.ir import Block, Operation, SSAValue

from ..facts.lanes import runs_on_one_lane
from ..facts.ranges import ranges
from ..facts.uniformity import Uniformity, uniformity
from ..ir import machine, make, ops
from ..ir.types import is_scalar
from ..ir.walk import every, operations


def run(kernel: ops.Kernel) -> None:
    facts = _Facts(kernel)
    for op in kernel.body.block.ops:
        if isinstance(op, ops.Role):
            _Divisions(facts, op.body.block, inverses=not runs_on_one_lane(op)).run()
        elif isinstance(op, machine.Queue):
            _Divisions(facts, op.body.block, inverses=True).run()


class _Facts:
    """What holds of values as they were before the pass; `was`: which value stood where a new one stands."""

    def __init__(self, kernel: ops.Kernel):
        self.ranges, self.uniformity = ranges(kernel), uniformity(kernel)
        self.was: dict[SSAValue, SSAValue] = {}

    def nonnegative(self, value: SSAValue) -> bool:
        return self.ranges.nonnegative(self.was.get(value, value))

    def near_ends(self, value: SSAValue) -> bool:
        return self.ranges.near_ends(self.was.get(value, value))

    def of_cta(self, value: SSAValue) -> bool:
        """Whether it is the same in a CTA all through the launch."""
        return self.uniformity[self.was.get(value, value)] in (Uniformity.LAUNCH, Uniformity.CTA)


class _Divisions:
    """The divisions of a role, or of a queue's body. Inverses, and what they are made of, go before the statement of `block` where the first is needed."""

    def __init__(self, facts: _Facts, block: Block, inverses: bool):
        self.facts, self.block, self.inverses = facts, block, inverses
        self.made: dict[SSAValue, SSAValue] = {}  # divisor -> inverse
        self.magnitudes: dict[SSAValue, SSAValue] = {}  # divisor -> inverse of its magnitude
        self.movable: dict[SSAValue, bool] = {}

    def run(self) -> None:
        for top in operations(self.block):
            for op in [top, *every(top)]:
                if isinstance(op, ops.Apply) and op.kind.divides_integers:
                    if all(map(self.facts.nonnegative, op.arguments)):
                        self.division(op, top)
                    else:
                        self.signed(op, top)

    def division(self, op: ops.Apply, top: Operation) -> None:
        x, y = op.arguments
        known = ops.known(y)
        if known == 1 or (isinstance(known, int) and known > 0 and known & (known - 1) == 0 and op.kind.rounds != "up"):
            return
        once = self.inverses and known is None and all(self.facts.of_cta(v) and self._movable(v) for v in (x, y))
        inverse = self.inverse(y, top) if self.inverses and known is None and not once else None
        made = machine.division(op.kind, x, y, op.result.type, inverse)
        self._replace(op, made)
        if once:
            self._move(made.result, top)

    def signed(self, op: ops.Apply, top: Operation) -> None:
        """A tile by a divisor that does not change, of any signs."""
        x, y = op.arguments
        if is_scalar(x) or not self.inverses or op.kind.rounds == "up" or ops.known(y) is not None or self.facts.near_ends(x):
            return
        if y not in self.magnitudes:
            if not is_scalar(y) or not self.facts.of_cta(y) or not self._movable(y):
                return
            self._move(y, top)
            opposite = make.negate(y, y.type)
            self.block.insert_op_before(opposite, top)
            magnitude = make.greatest(y, opposite.result, y.type)
            self.block.insert_op_before(magnitude, top)
            made = machine.inverse(magnitude.result)
            made.result.name_hint = "inverse"
            self.block.insert_op_before(made, top)
            self.magnitudes[y] = made.result
        self._replace(op, machine.division(op.kind, x, y, op.result.type, self.magnitudes[y], signed=True))

    def _replace(self, op: ops.Apply, made: machine.Quotient | machine.Remainder) -> None:
        made.location, made.result.name_hint = op.location, op.result.name_hint
        self.facts.was[made.result] = op.result
        block = op.parent_block()
        assert block is not None
        block.insert_op_before(made, op)
        op.result.replace_all_uses_with(made.result)
        op.detach()
        op.erase()

    def inverse(self, y: SSAValue, top: Operation) -> SSAValue | None:
        if y not in self.made:
            if not is_scalar(y) or not self.facts.of_cta(y) or not self._movable(y):
                return None
            self._move(y, top)
            made = machine.inverse(y)
            made.result.name_hint = "inverse"
            self.block.insert_op_before(made, top)
            self.made[y] = made.result
        return self.made[y]

    # ---- what a divisor is made of, before `top`
    def _stands(self, value: SSAValue) -> bool:
        """Whether a value stands outside of every loop and branch of the block."""
        owner = value.owner
        block = owner if isinstance(owner, Block) else owner.parent_block()
        return block is self.block or isinstance(block.parent_op() if block else None, ops.Kernel)

    def _movable(self, value: SSAValue) -> bool:
        """Whether it can be computed before every loop and branch: where nothing asks for it either, without a division by 0 or a read outside of a tensor."""
        if value not in self.movable:
            self.movable[value] = self._stands(value) or self._total(value.owner)
        return self.movable[value]

    def _total(self, op: Operation | Block) -> bool:
        total = isinstance(op, (ops.Constant, machine.Inverse, machine.Quotient, machine.Remainder))
        if isinstance(op, ops.Apply):
            total = not op.kind.divides_integers or bool(ops.known(op.arguments[1]))
        return total and isinstance(op, Operation) and all(map(self._movable, op.operands))

    def _move(self, value: SSAValue, top: Operation) -> None:
        if not self._stands(value):
            op = value.owner
            assert isinstance(op, Operation)
            for operand in op.operands:
                self._move(operand, top)
            op.detach()
            self.block.insert_op_before(op, top)


__all__ = ["run"]
