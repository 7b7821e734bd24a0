"""Division by products with inverses, and unsigned."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...ir import machine
from ...ir.types import TileT, is_scalar
from ..loops import index_of
from ..operators import strip
from ..registry import prints

if TYPE_CHECKING:
    from ..role import RolePrinter


@prints("tile.inverse")
def inverse(role: RolePrinter, op: machine.Inverse) -> None:
    role.out.line(f"const unsigned {role.storage(op.result).name} = cuir::inverse({strip(role.elements.scalar(op.divisor))});")


@prints("tile.quotient", "tile.remainder")
def division(role: RolePrinter, op: machine.Quotient | machine.Remainder) -> None:
    sign, function = ("/", "quotient") if isinstance(op, machine.Quotient) else ("%", "remainder")
    if op.signed is not None:
        function = f"signed_{function}"
    up = isinstance(op, machine.Quotient) and op.up is not None

    def text(x: str, y: str) -> str:
        dividend = f"unsigned({strip(x)}) + (unsigned({strip(y)}) - 1u)" if up else strip(x)
        if op.inverse is not None:
            return f"cuir::{function}({dividend}, {strip(y)}, {strip(role.elements.scalar(op.inverse))})"
        return f"int(({dividend}) / unsigned({strip(y)}))" if up else f"int(unsigned({dividend}) {sign} unsigned({strip(y)}))"

    s, t = role.storage(op.result), op.result.type
    if is_scalar(op.result):
        head = f"const {s.ctype} " if s.constant else ""
        role.out.line(f"{head}{s.name} = {text(role.elements.scalar(op.x), role.elements.scalar(op.y))};")
        return
    assert isinstance(t, TileT)
    role.elements.loop(
        t, lambda at: f"{s.name}[{index_of(t, at)}] = {text(role.elements.element(op.x, at), role.elements.element(op.y, at))};"
    )


@prints("tile.note")
def note(role: RolePrinter, op: machine.Note) -> None:
    role.kernel.choice(op.text.data, role.span(op))
