"""Printers of unsigned division and of division by products with inverses."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from xdsl.ir import SSAValue

from ...ir import machine_ops as machine
from ...ir.ir_types import TileT, is_scalar
from ..loops import Position, index_of
from ..operator_text import strip
from ..registry import element_of, prints

if TYPE_CHECKING:
    from ..elements import Elements
    from ..role import RolePrinter

Division = machine.Quotient | machine.Remainder


@prints("tile.inverse")
def inverse(role: RolePrinter, op: machine.Inverse) -> None:
    """Emit the inverse of a divisor."""
    s = role.storage(op.result)
    role.out.line(f"{'const unsigned ' if s.constant else ''}{s.name} = cuir::inverse({strip(role.elements.scalar(op.divisor))});")


@prints("tile.quotient", "tile.remainder")
def division(role: RolePrinter, op: Division) -> None:
    """Emit a quotient or a remainder."""
    s, t = role.storage(op.result), op.result.type
    if is_scalar(op.result):
        head = f"const {s.ctype} " if s.constant else ""
        role.out.line(f"{head}{s.name} = {_make_text(role.elements, op, role.elements.scalar)};")
        return
    assert isinstance(t, TileT)
    role.elements.emit_loop(t, lambda at: f"{s.name}[{index_of(t, at)}] = {element(role.elements, op, at)};")


@element_of("tile.quotient")
@element_of("tile.remainder")
def element(elements: Elements, op: Division, at: Position) -> str:
    """Return an element of a quotient or of a remainder."""
    return _make_text(elements, op, lambda value: elements.element(value, at))


def _make_text(elements: Elements, op: Division, number: Callable[[SSAValue], str]) -> str:
    """Return a quotient or a remainder; `number` returns the text of an operand."""
    sign, function = ("/", "quotient") if isinstance(op, machine.Quotient) else ("%", "remainder")
    if op.signed is not None:
        function = f"signed_{function}"
    up = isinstance(op, machine.Quotient) and op.up is not None
    x, y = strip(number(op.x)), strip(number(op.y))
    dividend = f"unsigned({x}) + (unsigned({y}) - 1u)" if up else x
    if op.inverse is not None:
        return f"cuir::{function}({dividend}, {y}, {strip(elements.scalar(op.inverse))})"
    return f"int(({dividend}) / unsigned({y}))" if up else f"int(unsigned({dividend}) {sign} unsigned({y}))"


@prints("tile.note")
def note(role: RolePrinter, op: machine.Note) -> None:
    """Record a choice of a pass for the report."""
    role.kernel.record_choice(op.text.data, role.span(op))
