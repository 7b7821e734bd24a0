"""Operations on parts of rows in a thread, and accumulators without a value."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue
from xdsl.irdl import IRDLOperation, irdl_op_definition, operand_def, result_def
from xdsl.parser import Parser
from xdsl.printer import Printer

from ...ops.meaning import Value
from ..layouts.tile_layouts import PARTIAL
from .ir_types import TileT, tile
from .machine_functions import Function


@irdl_op_definition
class RowPart(Function):
    """The sum of a thread's elements of each row.

    The four threads that share a row hold the sum of the row together.
    """

    name = "tile.row_part"
    x = operand_def(TileT)
    result = result_def(TileT)

    def evaluate(self, context: object, operands: Sequence[Value]) -> list[Value]:
        """Return [R, 4]: thread q of a row holds columns c with c // 2 % 4 == q."""
        x = operands[0]
        rows, cols = x.shape
        import torch

        quads = torch.arange(cols) // 2 % 4
        return [torch.stack([x[:, quads == q].sum(-1) if bool((quads == q).any()) else x.new_zeros(rows) for q in range(4)], dim=1)]


@irdl_op_definition
class QuadSum(Function):
    """The sum of the parts in the four threads of each row."""

    name = "tile.quad_sum"
    x = operand_def(TileT)
    result = result_def(TileT)

    def evaluate(self, context: object, operands: Sequence[Value]) -> list[Value]:
        return [operands[0].sum(-1, keepdim=True)]


@irdl_op_definition
class Nothing(IRDLOperation):
    """Registers that hold no value yet.

    They are not read: a product that takes them over starts from zeros.
    """

    name = "tile.nothing"
    result = result_def(TileT)

    def print(self, printer: Printer) -> None:
        printer.print_string(" : ")
        printer.print_attribute(self.result.type)

    @classmethod
    def parse(cls, parser: Parser) -> Nothing:
        parser.parse_punctuation(":")
        return cls(result_types=[parser.parse_type()])

    def evaluate(self, context: object, operands: Sequence[Value]) -> list[Value]:
        import torch

        return [torch.full(self.result.type.shape, float("nan"))]


def row_part(x: SSAValue) -> RowPart:
    """Make the partial row sums of a tile: each thread sums its own elements of a row, without shuffles."""
    t = x.type
    assert isinstance(t, TileT)
    return RowPart(operands=[x], result_types=[tile(t.element, t.shape[0], 1, PARTIAL)])


def quad_sum(x: SSAValue) -> QuadSum:
    """Make the sums of rows from their parts."""
    t = x.type
    assert isinstance(t, TileT)
    return QuadSum(operands=[x], result_types=[tile(t.element, t.shape[0], 1)])


OPERATIONS = [RowPart, QuadSum, Nothing]
