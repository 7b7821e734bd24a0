"""Operands of operations: their text, and access to them by name.

Their types are not repeated, since each is defined before it is read.

Operations of the machine that are functions of their operands: their text, and traits for passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import ClassVar, Self, TypeVar

from xdsl.dialects.builtin import UnitAttr
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.irdl import traits_def
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.printer import Printer
from xdsl.traits import Pure

from .tile_operation import TileOperation


def print_operands(printer: Printer, values: Sequence[SSAValue]) -> None:
    """Print operands in parentheses."""
    printer.print_string("(")
    printer.print_list(values, printer.print_ssa_value)
    printer.print_string(")")


def parse_operands(parser: Parser) -> list[SSAValue]:
    """Parse operands in parentheses."""
    return parser.parse_comma_separated_list(parser.Delimiter.PAREN, lambda: parse_operand(parser))


def parse_operand(parser: Parser) -> SSAValue:
    """Parse the name of a value that is defined."""
    return _resolve(parser, parser.parse_unresolved_operand("a value"))


def parse_optional_operand(parser: Parser) -> SSAValue | None:
    """Parse the name of a value, if there is one."""
    operand = parser.parse_optional_unresolved_operand()
    return None if operand is None else _resolve(parser, operand)


def _resolve(parser: Parser, operand: UnresolvedOperand) -> SSAValue:
    values = parser.ssa_values.get(operand.operand_name, ())
    if operand.index >= len(values):
        parser.raise_error(f"SSA value used before assignment: %{operand.operand_name}", operand.span)
    return values[operand.index]


Op = TypeVar("Op", bound=type[Operation])


def all_operands(name: str) -> Callable[[Op], Op]:
    """Return a decorator that makes a name the tuple of all operands, for operations declared so."""

    def name_operands(op: Op) -> Op:
        setattr(op, name, property(attrgetter("_operands")))  # `operands` is a view, made at each read
        return op

    return name_operands


def one_result(op: Op) -> Op:
    """Make `result` the only result of an operation that is declared with one."""

    def result(self: Operation) -> object:
        (only,) = self.results
        return only

    op.result = property(result)  # type: ignore[attr-defined]
    return op


class Function(TileOperation):
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


__all__ = ["Function", "all_operands", "one_result"]
