"""Limit of a column index as one saturated number, which the language has no operation for."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import IntAttr, UnitAttr
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import IRDLOperation, irdl_op_definition, operand_def, opt_prop_def, prop_def, result_def, traits_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import Pure

from ...ops.meaning import Value
from .operand_access import parse_operands


@irdl_op_definition
class LimitOf(IRDLOperation):
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


OPERATIONS = [LimitOf]
