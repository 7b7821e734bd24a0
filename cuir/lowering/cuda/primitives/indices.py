"""Printer of limits on columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...ir import indices
from ...ir.ir_types import TileT, is_scalar
from ..loops import index_of
from ..operator_text import strip
from ..registry import prints

if TYPE_CHECKING:
    from ..role import RolePrinter


@prints("tile.limit")
def limit(role: RolePrinter, op: indices.LimitOf) -> None:
    """Emit the difference of two numbers, saturated to the i32 range."""
    s, t, function = role.storage(op.result), op.result.type, f"cuir::limit<{op.plus.data}>"
    if is_scalar(op.result):
        text = f"{function}({strip(role.elements.scalar(op.y))}, {strip(role.elements.scalar(op.x))})"
        role.out.line(f"{'const int ' if s.constant else ''}{s.name} = {text};")
        return
    assert isinstance(t, TileT)
    role.elements.emit_loop(
        t,
        lambda at: (
            f"{s.name}[{index_of(t, at)}] = {function}({strip(role.elements.element(op.y, at))}, {strip(role.elements.element(op.x, at))});"
        ),
    )
