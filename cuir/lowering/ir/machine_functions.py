"""Operations of the machine that are functions of their operands: their text, and traits for passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

from xdsl.dialects.builtin import UnitAttr
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import IRDLOperation, traits_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import Pure

from .operand_access import parse_operands, print_operands


class Function(IRDLOperation):
    """name(operands) words : type. `WORDS`: properties that are present or absent.

    Attributes:
        ELEMENTWISE: An element of the result depends on the operands' elements at its place.
        IN_REGISTERS: The tile is always held in registers, never inlined in its reader.
        FREE: An element costs no more than reading a register, so it is rematerialised in every reader.
        SPECIAL: Computed by the unit of exponentials and reciprocals.
        ONE_LANE: Of numbers that one lane of a warp can compute.
    """

    WORDS: ClassVar[tuple[str, ...]] = ()
    ELEMENTWISE: ClassVar[bool] = False
    IN_REGISTERS: ClassVar[bool] = False
    FREE: ClassVar[bool] = False
    SPECIAL: ClassVar[bool] = False
    ONE_LANE: ClassVar[bool] = False
    traits = traits_def(Pure())

    def print(self, printer: Printer) -> None:
        print_operands(printer, self.operands)
        for word in self.WORDS:
            printer.print_string(f" {word}" if word in self.properties else "")
        printer.print_string(" : ")
        printer.print_attribute(self.results[0].type)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        operands = parse_operands(parser)
        properties: dict[str, Attribute] = {word: UnitAttr() for word in cls.WORDS if parser.parse_optional_keyword(word)}
        parser.parse_punctuation(":")
        return cls.from_operands(operands, properties, parser.parse_type())

    @classmethod
    def from_operands(cls, operands: Sequence[SSAValue], properties: dict[str, Attribute], result: Attribute) -> Self:
        """Make the operation from a flat list of operands."""
        return cls(operands=list(operands), properties=properties, result_types=[result])
