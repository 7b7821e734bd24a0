"""Reductions of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdsl.ir import SSAValue

from ...ir import ops, rows
from ...ir.types import TileT
from ..places import unsupported
from ..registry import prints

if TYPE_CHECKING:
    from ..role import RolePrinter


def _reduced(role: RolePrinter, op: ops.Apply) -> SSAValue:
    """The tile whose rows are reduced. Raises CuirError L002 for one of a single row or column."""
    x = op.arguments[0]
    if not isinstance(x.type, TileT) or x.type.layout.data != "full":
        hint = "a column is its own maximum and sum; add a row to zeros(f32, [64, COLUMNS]), reduce that"
        raise unsupported(f"`{op.entry.written}` of a tile with one row or one column", role.span(op), hint)
    return x


@prints("row_max")
def row_max(role: RolePrinter, op: ops.Apply) -> None:
    x = _reduced(role, op)
    function = "row_max_nan" if role.kernel.facts.negative_nan(x) else "row_max"
    role.out.line(f"cuir::{function}({role.elements.array(x)}, {role.storage(op.result).name});")


@prints("row_sum")
def row_sum(role: RolePrinter, op: ops.Apply) -> None:
    """Of the whole row."""
    x, target, t = _reduced(role, op), role.storage(op.result).name, op.result.type
    assert isinstance(t, TileT)
    part = role.out.temp("part")
    array = role.elements.array(x)
    role.out.line(f"float {part}[{role.fragment(t).row_values}];\ncuir::row_part({array}, {part});")
    role.elements.loop(t, lambda at: f"{target}[{at.r}] = cuir::quad_sum({part}[{at.r}]);")


@prints("tile.row_part")
def row_part(role: RolePrinter, op: rows.RowPart) -> None:
    role.out.line(f"cuir::row_part({role.elements.array(op.x)}, {role.storage(op.result).name});")


@prints("tile.quad_sum")
def quad_sum(role: RolePrinter, op: rows.QuadSum) -> None:
    source, target, t = role.storage(op.x).name, role.storage(op.result).name, op.result.type
    assert isinstance(t, TileT)
    role.elements.loop(t, lambda at: f"{target}[{at.r}] = cuir::quad_sum({source}[{at.r}]);")


@prints("tile.nothing")
def nothing(role: RolePrinter, op: rows.Nothing) -> None:
    role.out.line(f"cuir::forget({role.storage(op.result).name});")
