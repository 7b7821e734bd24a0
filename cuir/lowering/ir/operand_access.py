"""Operands of operations: their text, and access to them by name.

Their types are not repeated, since each is defined before it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TypeVar

from xdsl.ir import Operation, SSAValue
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.printer import Printer


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


__all__ = ["all_operands", "one_result"]
