"""Steps of what warps exchange through shared memory: reductions of columns, and slots of a queue of work items.

The pass `split_exchanges` makes them, so that the joins of lanes between the steps stand in the IR.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Operation, SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def
from xdsl.parser import Parser
from xdsl.printer import Printer

from ...ops.base import Op
from ...ops.meaning import Value
from . import ops
from .ir_types import TileT
from .operand_access import parse_operand
from .tile_operation import TileOperation

if TYPE_CHECKING:
    from .evaluator_state import Worker


class _Columns(TileOperation):
    """name "primitive"(x) : type."""

    primitive = prop_def(StringAttr)
    x = operand_def(TileT)
    result = result_def(TileT)

    @property
    def entry(self) -> Op:
        """The reduction's entry in the table of primitives."""
        return ops.entry(self.primitive.data)

    def print(self, printer: Printer) -> None:
        printer.print_string(f' "{self.primitive.data}"(')
        printer.print_ssa_value(self.x)
        printer.print_string(") : ")
        printer.print_attribute(self.result.type)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        primitive = parser.parse_str_literal("the name of a reduction")
        parser.parse_punctuation("(")
        x = parse_operand(parser)
        parser.parse_punctuation(")")
        parser.parse_punctuation(":")
        return cls(operands=[x], properties={"primitive": StringAttr(primitive)}, result_types=[parser.parse_type()])


@irdl_op_definition
class GiveColumns(_Columns):
    """Each warp reduces the columns of its rows, and writes the results where the worker's other warps find them.

    For the evaluator the result is the whole tile.
    """

    name = "tile.give_columns"

    def evaluate(self, context: Worker, operands: Sequence[Value]) -> list[Value]:
        if context.lanes is not None:
            context.lanes.give_columns()
        return [operands[0]]


@irdl_op_definition
class TakeColumns(_Columns):
    """Each thread reads what the worker's warps have given, and reduces it. The result has the registers of its operand."""

    name = "tile.take_columns"

    def evaluate(self, context: Worker, operands: Sequence[Value]) -> list[Value]:
        if context.lanes is not None:
            context.lanes.take_columns()
        assert self.entry.evaluate is not None
        return [self.entry.evaluate(operands[0])]


def exchange_columns(primitive: str, x: SSAValue, t: TileT) -> tuple[GiveColumns, TakeColumns]:
    """Make the two steps of a reduction of columns."""
    properties = {"primitive": StringAttr(primitive)}
    give = GiveColumns(operands=[x], properties=dict(properties), result_types=[t])
    return give, TakeColumns(operands=[give.result], properties=dict(properties), result_types=[t])


@irdl_op_definition
class ReleaseSlot(TileOperation):
    """A warp gives back the slot of the queue from which it has read a work item, once all its lanes have read."""

    name = "tile.release_slot"

    def evaluate(self, context: Worker, operands: Sequence[Value]) -> list[Value]:
        if context.lanes is not None:
            context.lanes.check_met()
        return []

    def print(self, printer: Printer) -> None: ...

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        return cls()


OPERATIONS: list[type[Operation]] = [GiveColumns, TakeColumns, ReleaseSlot]

__all__ = ["OPERATIONS", "GiveColumns", "ReleaseSlot", "TakeColumns", "exchange_columns"]
