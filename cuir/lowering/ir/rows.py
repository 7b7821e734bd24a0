"""Operations on numbers a row that only a machine has, whose threads each hold a part of a row; and accumulators that hold nothing yet."""

from __future__ import annotations

from typing import Any, Self

from xdsl.ir import SSAValue
from xdsl.irdl import IRDLOperation, irdl_op_definition, operand_def, result_def, traits_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import Pure

from .types import TileT, tile


class _Unary(IRDLOperation):
    """An operation on one tile."""

    def print(self, printer: Printer) -> None:
        printer.print_string("(")
        printer.print_ssa_value(self.operands[0])
        printer.print_string(") : ")
        printer.print_attribute(self.results[0].type)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        operand = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_operand)
        parser.parse_punctuation(":")
        return cls(operands=operand, result_types=[parser.parse_type()])


@irdl_op_definition
class RowPart(_Unary):
    """The sum of a thread's own elements of each row: the four threads that share a row hold the sum of the row together."""

    name = "tile.row_part"
    x = operand_def(TileT)
    result = result_def(TileT)
    traits = traits_def(Pure())

    def evaluate(self, context: Any, operands: Any) -> Any:
        """[R, 4]: thread q of a row holds columns c with c // 2 % 4 == q."""
        x = operands[0]
        rows, cols = x.shape
        import torch

        quads = torch.arange(cols) // 2 % 4
        return [torch.stack([x[:, quads == q].sum(-1) if bool((quads == q).any()) else x.new_zeros(rows) for q in range(4)], dim=1)]


@irdl_op_definition
class QuadSum(_Unary):
    """The sum of what the four threads of each row hold."""

    name = "tile.quad_sum"
    x = operand_def(TileT)
    result = result_def(TileT)
    traits = traits_def(Pure())

    def evaluate(self, context: Any, operands: Any) -> Any:
        return [operands[0].sum(-1, keepdim=True)]


@irdl_op_definition
class Nothing(IRDLOperation):
    """Registers that hold no value yet. Nobody reads them: a product that takes them over starts from zeros."""

    name = "tile.nothing"
    result = result_def(TileT)

    def print(self, printer: Printer) -> None:
        printer.print_string(" : ")
        printer.print_attribute(self.result.type)

    @classmethod
    def parse(cls, parser: Parser) -> Nothing:
        parser.parse_punctuation(":")
        return cls(result_types=[parser.parse_type()])

    def evaluate(self, context: Any, operands: Any) -> Any:
        import torch

        return [torch.full(self.result.type.shape, float("nan"))]


def row_part(x: SSAValue) -> RowPart:
    t = x.type
    assert isinstance(t, TileT)
    return RowPart(operands=[x], result_types=[tile(t.element, t.shape[0], 1, "partial")])


def quad_sum(x: SSAValue) -> QuadSum:
    t = x.type
    assert isinstance(t, TileT)
    return QuadSum(operands=[x], result_types=[tile(t.element, t.shape[0], 1)])


OPERATIONS = [RowPart, QuadSum, Nothing]
