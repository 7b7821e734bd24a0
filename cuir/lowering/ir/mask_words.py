"""Truth values that are bits of words, of which a thread holds those of its rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.irdl import AttrSizedOperandSegments, irdl_op_definition, opt_operand_def, result_def, var_operand_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from ...ops.meaning import Value
from ...syntax.types import BOOL, I32
from .ir_types import TileT, dtype_of
from .machine_functions import Function
from .operand_access import parse_operand, parse_operands, print_operands

WORD = 32  # bits


@irdl_op_definition
class Bits(Function):
    """A full tile of bits: element (r, c) is bit c % 32 of word c // 32 of row r.

    From column `limit` on, a number or one per row, elements are false.
    """

    name = "tile.bits"
    words = var_operand_def(TileT)
    limit = opt_operand_def()
    result = result_def(TileT)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    ELEMENTWISE: ClassVar[bool] = True

    def evaluate(self, context: object, operands: Sequence[Value]) -> list[Value]:
        import torch

        words = operands[: len(self.words)]
        rows, cols = self.result.type.shape
        columns = torch.arange(cols, dtype=torch.int32)
        word_of = torch.stack([w.expand(rows, 1) for w in words], -1)[:, 0, :][:, (columns // WORD).long()]
        truths = torch.bitwise_right_shift(word_of, columns % WORD).bitwise_and(1) == 1
        return [truths if self.limit is None else truths & (columns < operands[-1])]

    def verify_(self) -> None:
        t = self.result.type
        if t.element != BOOL or not t.layout.is_accumulator or len(self.words) != -(-t.shape[1] // WORD):
            raise VerifyException("tile.bits gives a full tile of truth values, of a word for each 32 columns")
        for value in (*self.words, *([] if self.limit is None else [self.limit])):
            if dtype_of(value) != I32 or (isinstance(value.type, TileT) and not value.type.layout.is_constant_along_rows):
                raise VerifyException("tile.bits is of i32 numbers a row")

    def print(self, printer: Printer) -> None:
        print_operands(printer, list(self.words))
        if self.limit is not None:
            printer.print_string(" below ")
            printer.print_ssa_value(self.limit)
        printer.print_string(" : ")
        printer.print_attribute(self.result.type)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        words = parse_operands(parser)
        limit = parse_operand(parser) if parser.parse_optional_keyword("below") else None
        parser.parse_punctuation(":")
        return cls(operands=[words, [] if limit is None else [limit]], result_types=[parser.parse_type()])


def bits(words: Sequence[SSAValue], result: Attribute, limit: SSAValue | None = None) -> Bits:
    """Make truth values of words, false from column `limit` on."""
    return Bits(operands=[list(words), [] if limit is None else [limit]], result_types=[result])


OPERATIONS: list[type[Operation]] = [Bits]

__all__ = ["OPERATIONS", "WORD", "Bits", "bits"]
