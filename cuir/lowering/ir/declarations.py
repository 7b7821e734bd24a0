"""Declarations of a kernel: tensors and numbers, arrays in shared memory, barriers, work items."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self

from xdsl.dialects.builtin import IntAttr, StringAttr, UnitAttr
from xdsl.ir import Attribute, OpResult
from xdsl.irdl import IRDLOperation, irdl_op_definition, operand_def, opt_prop_def, prop_def, result_def
from xdsl.parser import Parser
from xdsl.printer import Printer

from .ir_types import BarrierT, ScalarT, SharedT, TensorT, UnitsT
from .operand_access import parse_operand, print_operands


class Declaration(IRDLOperation):
    """A value of the kernel's frame under its name in the program.

    `WORDS`: its numbers and flags, in the order of its text.
    """

    if TYPE_CHECKING:
        symbol: StringAttr
        result: OpResult
    WORDS: ClassVar[Any] = ()

    def print(self, printer: Printer) -> None:
        printer.print_string(f' "{self.symbol.data}"')
        for name in self.WORDS:
            attribute = self.properties.get(name)
            if isinstance(attribute, IntAttr):
                printer.print_string(f" {name}={attribute.data}")
            elif attribute is not None:
                printer.print_string(f" {name}")
        if self.operands:
            print_operands(printer, self.operands)
        printer.print_string(" : ")
        printer.print_attribute(self.result.type)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        properties: dict[str, Attribute] = {"symbol": StringAttr(parser.parse_str_literal("a name"))}
        for name in cls.WORDS:
            if parser.parse_optional_keyword(name):
                has_value = parser.parse_optional_punctuation("=")
                properties[name] = IntAttr(parser.parse_integer()) if has_value else UnitAttr()
        operands = parser.parse_optional_comma_separated_list(parser.Delimiter.PAREN, lambda: parse_operand(parser)) or []
        parser.parse_punctuation(":")
        return cls(operands=operands, properties=properties, result_types=[parser.parse_type()])


@irdl_op_definition
class Tensor(Declaration):
    """A tensor parameter.

    `written`: the kernel stores to it; `scratch`: the launch allocates it, contiguous.
    """

    name = "tile.tensor"
    symbol = prop_def(StringAttr)
    written = opt_prop_def(UnitAttr)
    scratch = opt_prop_def(UnitAttr)
    result = result_def(TensorT)
    WORDS: ClassVar = ("written", "scratch")


@irdl_op_definition
class Parameter(Declaration):
    """A scalar parameter, or (`dim`) a dim of a tensor that is known at run time: a nonnegative i32.

    `judged`: indices depend on it, so that a launch for which arithmetic with it would leave 32 bits is refused.
    """

    name = "tile.parameter"
    symbol = prop_def(StringAttr)
    dim = opt_prop_def(UnitAttr)
    judged = opt_prop_def(UnitAttr)
    result = result_def(ScalarT)
    WORDS: ClassVar = ("dim", "judged")


@irdl_op_definition
class Shared(Declaration):
    """An array in shared memory, `offset` bytes from the start of the CTA's arrays."""

    name = "tile.shared"
    symbol = prop_def(StringAttr)
    offset = prop_def(IntAttr)
    result = result_def(SharedT)
    WORDS: ClassVar = ("offset",)


@irdl_op_definition
class Barrier(Declaration):
    """A barrier, or a ring of them: `count` workers arrive (mbarrier) or take part (named_barrier)."""

    name = "tile.barrier"
    symbol = prop_def(StringAttr)
    count = prop_def(IntAttr)
    result = result_def(BarrierT)
    WORDS: ClassVar = ("count",)


@irdl_op_definition
class Units(Declaration):
    """The work items 0 .. count-1. `dynamic`: a CTA takes the next when it has finished one."""

    name = "tile.units"
    symbol = prop_def(StringAttr)
    dynamic = opt_prop_def(UnitAttr)
    count = operand_def(ScalarT)
    result = result_def(UnitsT)
    WORDS: ClassVar = ("dynamic",)
