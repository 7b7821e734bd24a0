"""Operations on indices that only the machine has."""

from __future__ import annotations

from typing import Any

from xdsl.dialects.builtin import IntAttr
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import IRDLOperation, irdl_op_definition, operand_def, prop_def, result_def, traits_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import Pure

from .operands import parse_operands


@irdl_op_definition
class LimitOf(IRDLOperation):
    """y - x + plus, or the end of the 32-bit range on whose side it lies: a limit on columns, of which none is there."""

    name = "tile.limit"
    y = operand_def()
    x = operand_def()
    plus = prop_def(IntAttr)
    result = result_def()
    traits = traits_def(Pure())

    def print(self, printer: Printer) -> None:
        printer.print_string("(")
        printer.print_list(self.operands, printer.print_ssa_value)
        printer.print_string(f") plus {self.plus.data} : ")
        printer.print_attribute(self.result.type)

    @classmethod
    def parse(cls, parser: Parser) -> LimitOf:
        operands = parse_operands(parser)
        parser.parse_keyword("plus")
        plus = parser.parse_integer()
        parser.parse_punctuation(":")
        return cls(operands=operands, properties={"plus": IntAttr(plus)}, result_types=[parser.parse_type()])

    def evaluate(self, context: Any, operands: Any) -> list[Any]:
        import torch

        y, x = (o.to(torch.int64) if isinstance(o, torch.Tensor) else int(o) for o in operands)
        found = y - x + self.plus.data
        if isinstance(found, int):
            return [max(-(2**31), min(2**31 - 1, found))]
        return [found.clamp(-(2**31), 2**31 - 1).to(torch.int32)]


def limit_of(y: SSAValue, x: SSAValue, plus: int, result: Attribute) -> LimitOf:
    return LimitOf(operands=[y, x], properties={"plus": IntAttr(plus)}, result_types=[result])


OPERATIONS = [LimitOf]
