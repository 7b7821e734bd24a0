"""Value numbers of scalars across roles: equal numbers, equal values.

Only scalars computed from a work item, a worker's index and the launch have a number. A number stands for an operation
and the numbers of its operands; for a branch, these are the condition and the values of both regions.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from xdsl.ir import Attribute, Block, BlockArgument, Operation, SSAValue

from ...ops import OPERATORS
from ...ops.expressions import subscript
from ...syntax.types import I32, Scalar
from ..ir import ops
from ..ir.ir_types import ElementT, TensorT, is_scalar
from .memory import is_memory_effect_free

# instructions, roughly: only the order of magnitude matters
DIVISION = min(op.traits.cost for op in OPERATORS.values() if op.traits.divides_integers)
LOAD = subscript(Scalar(I32)).traits.cost


@dataclass(frozen=True)
class Number:
    """A value with its number."""

    number: int
    type: Attribute
    op: Operation | None  # computes it; None: the index of the work item or of the worker
    operands: tuple[int, ...] = ()  # of a branch: the condition's, both sides'
    of_unit: bool = False  # depends on the work item
    worker: ops.Role | None = None  # depends on the worker of this role
    cost: int = 0  # of the operation itself, in instructions

    @property
    def copies(self) -> int:
        """Number of workers that have a value of their own."""
        return self.worker.workers.data if self.worker else 1


class Numbers:
    """The numbers of a kernel's scalars; operands have lower ones than results.

    `frame`: values outside of all roles, by number.
    """

    def __init__(self, kernel: ops.Kernel):
        self.kernel = kernel
        self.table: list[Number] = []
        self.frame: dict[int, SSAValue] = {}
        self._keys: dict[object, int] = {}
        self._of: dict[SSAValue, int | None] = {}
        self._block(kernel.body.block)
        for op in kernel.body.block.ops:
            for value in op.results:
                if (number := self[value]) is not None:
                    self.frame.setdefault(number, value)

    def __getitem__(self, value: SSAValue) -> int | None:
        """Return the number of a value.

        None if it is no scalar, or depends on more than the work item, the worker's index and the launch.
        """
        if value not in self._of:
            self._of[value] = self._compute_number(value) if is_scalar(value) else None
        return self._of[value]

    def costs(self, number: int, least: int, free: Container[int] = ()) -> bool:
        """Return whether a value takes at least so many instructions for a work item.

        Values that are the same for all work items cost nothing, nor do those in `free`.
        """
        visited: set[int] = set()
        worklist, total = [number], 0
        while worklist and total < least:
            n = worklist.pop()
            if n not in visited and n not in free and self.table[n].of_unit:
                visited.add(n)
                total += self.table[n].cost
                worklist += self.table[n].operands
        return total >= least

    # ---- numbering
    def _block(self, block: Block) -> None:
        """Number the values of a block in the order of the text, so that chains of operands stay short."""
        for op in block.ops:
            for region in op.regions:
                self._block(region.block)
            for value in op.results:
                self[value]

    def _compute_number(self, value: SSAValue) -> int | None:
        if isinstance(value, BlockArgument):
            return self._number_argument(value)
        op = value.owner
        assert not isinstance(op, Block)
        if isinstance(op, ops.Constant):
            return self._enter(("constant", value.type, op.text), value, op)
        if isinstance(op, ops.Parameter):
            return self._enter(("parameter", op.symbol), value, op)
        if isinstance(op, ops.Apply):
            return self._number_operation(("apply", op.op, value.type), value, op, [self[a] for a in op.arguments], _compute_cost(op))
        if isinstance(op, ops.Perform):
            place = find_element(op)
            if place is None:
                return None
            return self._number_operation(("element", place.array), value, op, [self[i] for i in place.starts], op.entry.traits.cost)
        if isinstance(op, ops.If):
            index = list(op.results).index(value)  # type: ignore[arg-type]
            condition, then, orelse = self[op.condition], *(self[r.block.last_op.operands[index]] for r in op.regions if r.block.last_op)
            if then is not None and then == orelse:
                return then
            return self._number_operation(("if", value.type), value, op, [condition, then, orelse], 1)
        return None

    def _number_argument(self, value: BlockArgument) -> int | None:
        parent = value.block.parent_op()
        if isinstance(parent, ops.Role):
            if parent.workers.data == 1:
                return self._enter(("constant", value.type, ops.constant(0, I32).text), value, ops.constant(0, I32))
            return self._enter(("worker", parent), value, None, worker=parent)
        if isinstance(parent, ops.ForUnits) and value is parent.turn:
            return self._enter("unit", value, None, of_unit=True)
        return None

    def _number_operation(
        self, key: tuple[object, ...], value: SSAValue, op: Operation, operands: list[int | None], cost: int
    ) -> int | None:
        numbers = tuple(n for n in operands if n is not None)
        if len(numbers) < len(operands):
            return None
        below = [self.table[n] for n in numbers]
        worker = next((b.worker for b in below if b.worker), None)
        return self._enter((*key, numbers), value, op, numbers, any(b.of_unit for b in below), worker, cost)

    def _enter(
        self,
        key: object,
        value: SSAValue,
        op: Operation | None,
        operands: tuple[int, ...] = (),
        of_unit: bool = False,
        worker: ops.Role | None = None,
        cost: int = 0,
    ) -> int:
        if key not in self._keys:
            self._keys[key] = len(self.table)
            self.table.append(Number(len(self.table), value.type, op, operands, of_unit, worker, cost))
        return self._keys[key]


def find_element(op: ops.Perform) -> ops.At | None:
    """Return the place of the one element that an operation reads of a tensor that is never written."""
    if len(op.outputs) != 1 or not is_scalar(op.outputs[0]) or len(op.arguments) != 1 or not is_memory_effect_free(op):
        return None
    place = op.arguments[0].owner
    if not isinstance(place, ops.At) or not isinstance(place.result.type, ElementT) or not isinstance(place.array.type, TensorT):
        return None
    return place


def _compute_cost(op: ops.Apply) -> int:
    kind = op.kind
    value = ops.constant_value(op.arguments[1]) if kind.divides_integers else None
    power = isinstance(value, int) and value > 0 and value & (value - 1) == 0
    return (2 if kind.rounds == "up" else 1) if power else kind.cost


__all__ = ["DIVISION", "LOAD", "Number", "Numbers", "find_element"]
