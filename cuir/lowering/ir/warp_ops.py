"""Operations of warps: branches taken per warp, votes, and pins of arithmetic above a wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from xdsl.ir import SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    region_def,
    result_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer

from ...ops.meaning import Value
from . import ops
from .ir_types import TileT
from .machine_functions import Function
from .operand_access import parse_operand, parse_operands

if TYPE_CHECKING:
    from collections.abc import Sequence


@irdl_op_definition
class RowBound(Function):
    """An upper bound, at least 0, of a thread's elements of each row.

    It is enough for a vote on whether any element of a warp is greater. (The evaluator takes the row's maximum.)
    """

    name = "tile.row_bound"
    x = operand_def(TileT)
    result = result_def(TileT)

    def evaluate(self, context: object, operands: Sequence[Value]) -> list[Value]:
        return [operands[0].amax(-1, keepdim=True).clamp(min=0)]


@irdl_op_definition
class WarpIf(ops.Branch):
    """A branch of each warp, which runs `then` if `vote` holds in one of its rows or their threads' parts.

    Else it runs `orelse`. A vote that holds where it need not must change only the time it takes.
    """

    name = "tile.warp_if"
    vote = operand_def(TileT)
    then = region_def("single_block")
    orelse = region_def("single_block")
    outputs = var_result_def()


@irdl_op_definition
class Pinned(IRDLOperation):
    """A point in the program before which these values must be computed.

    Compilers sink arithmetic below a wait unless a branch before it needs the result. With a barrier, the operation
    waits for it where the condition holds, and is a branch that needs the numbers at the same time.
    """

    name = "tile.pinned"
    values = var_operand_def(TileT)
    condition = opt_operand_def()
    barrier = opt_operand_def()
    parity = opt_operand_def()
    irdl_options = (AttrSizedOperandSegments(as_property=True),)

    def print(self, printer: Printer) -> None:
        printer.print_string("(")
        printer.print_list(self.values, printer.print_ssa_value)
        printer.print_string(")")
        if self.condition is not None and self.barrier is not None and self.parity is not None:
            for word, value in (("if", self.condition), ("wait", self.barrier), ("parity", self.parity)):
                printer.print_string(f" {word} ")
                printer.print_ssa_value(value)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        values = parse_operands(parser)
        guard: list[list[SSAValue]] = [[], [], []]
        if parser.parse_optional_keyword("if"):
            condition = parse_operand(parser)
            parser.parse_keyword("wait")
            barrier = parse_operand(parser)
            parser.parse_keyword("parity")
            guard = [[condition], [barrier], [parse_operand(parser)]]
        return cls(operands=[values, *guard])


def make_pinned(values: Sequence[SSAValue], guard: tuple[SSAValue, SSAValue, SSAValue] | None) -> Pinned:
    """Make the point before which values are computed.

    `guard`: condition, barrier and parity of a wait that is the branch that needs them.
    """
    return Pinned(operands=[list(values), *([[g] for g in guard] if guard else [[], [], []])])


OPERATIONS = [RowBound, WarpIf, Pinned]
