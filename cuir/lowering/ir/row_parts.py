"""Operations on parts of rows in a thread, and accumulators without a value.

Limit of a column index as one saturated number, which the language has no operation for.

Truth values that are bits of words, of which a thread holds those of its rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

from xdsl.dialects.builtin import IntAttr, UnitAttr
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from ...ops.meaning import Value
from ...syntax.types import BOOL, I32
from ..layouts.tile_layouts import PARTIAL
from .ir_types import TileT, dtype_of, tile
from .operand_access import Function, parse_operand, parse_operands, print_operands
from .tile_operation import TileOperation


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
class Nothing(TileOperation):
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


@irdl_op_definition
class LimitOf(TileOperation):
    """y - x + plus, saturated to 32 bits: the limit with which a column index is compared.

    `sums`: x plus a column is a number of the program, and stays within 32 bits.
    """

    name = "tile.limit"
    y = operand_def()
    x = operand_def()
    plus = prop_def(IntAttr)
    sums = opt_prop_def(UnitAttr)
    result = result_def()
    traits = traits_def(Pure())

    def print(self, printer: Printer) -> None:
        printer.print_string("(")
        printer.print_list(self.operands, printer.print_ssa_value)
        printer.print_string(f") plus {self.plus.data}{' sums' if self.sums is not None else ''} : ")
        printer.print_attribute(self.result.type)

    @classmethod
    def parse(cls, parser: Parser) -> LimitOf:
        operands = parse_operands(parser)
        parser.parse_keyword("plus")
        plus = parser.parse_integer()
        sums = parser.parse_optional_keyword("sums") is not None
        parser.parse_punctuation(":")
        y, x = operands
        return limit_of(y, x, plus, parser.parse_type(), sums)

    def evaluate(self, context: object, operands: Sequence[Value]) -> list[Value]:
        import torch

        y, x = (o.to(torch.int64) if isinstance(o, torch.Tensor) else int(o) for o in operands)
        limit = y - x + self.plus.data
        if isinstance(limit, int):
            return [max(-(2**31), min(2**31 - 1, limit))]
        return [limit.clamp(-(2**31), 2**31 - 1).to(torch.int32)]


def limit_of(y: SSAValue, x: SSAValue, plus: int, result: Attribute, sums: bool = False) -> LimitOf:
    """Make y - x + plus, saturated."""
    properties: dict[str, Attribute] = {"plus": IntAttr(plus)} | ({"sums": UnitAttr()} if sums else {})
    return LimitOf(operands=[y, x], properties=properties, result_types=[result])


COLUMN_OPERATIONS = [LimitOf]


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

    def check(self) -> None:
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


WORD_OPERATIONS: list[type[Operation]] = [Bits]


__all__ = [
    "COLUMN_OPERATIONS",
    "OPERATIONS",
    "WORD",
    "WORD_OPERATIONS",
    "Bits",
    "LimitOf",
    "Nothing",
    "QuadSum",
    "RowPart",
    "bits",
    "limit_of",
    "quad_sum",
    "row_part",
]
