"""Printers of reductions of rows and of columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...ir import ops, row_parts
from ...ir.ir_types import TileT
from ..print_scope import index_of
from ..registry import prints

if TYPE_CHECKING:
    from ..role import RolePrinter


@prints("row_max")
def row_max(role: RolePrinter, op: ops.Apply) -> None:
    """Emit the maximum of each row."""
    x, target, t = op.arguments[0], role.storage(op.result).name, op.arguments[0].type
    assert isinstance(t, TileT)
    if t.shape[1] == 1:
        _emit_copy(role, op)
    elif t.shape[0] == 1:
        role.out.line(f"{target}[0] = cuir::line_max({role.elements.array(x)});")
    else:
        function = "row_max_nan" if role.kernel.facts.negative_nan(x) else "row_max"
        role.out.line(f"cuir::{function}({role.elements.array(x)}, {target});")


@prints("row_sum")
def row_sum(role: RolePrinter, op: ops.Apply) -> None:
    """Emit the sum of each row."""
    x, target, t = op.arguments[0], role.storage(op.result).name, op.result.type
    assert isinstance(t, TileT) and isinstance(x.type, TileT)
    if x.type.shape[1] == 1:
        _emit_copy(role, op)
        return
    if x.type.shape[0] == 1:
        role.out.line(f"{target}[0] = cuir::line_sum({role.elements.array(x)});")
        return
    part = role.out.temp("part")
    array = role.elements.array(x)
    role.out.line(f"float {part}[{role.fragment(t).row_values}];\ncuir::row_part({array}, {part});")
    role.elements.emit_loop(t, lambda at: f"{target}[{at.r}] = cuir::quad_sum({part}[{at.r}]);")


def _emit_copy(role: RolePrinter, op: ops.Apply) -> None:
    """Emit a reduction along a dim of length 1."""
    target, t = role.storage(op.result).name, op.result.type
    assert isinstance(t, TileT)
    array = role.elements.array(op.arguments[0])
    role.elements.emit_loop(t, lambda at: f"{target}[{index_of(t, at)}] = {array}[{index_of(t, at)}];")


@prints("col_max", "col_sum")
def column_reduction(role: RolePrinter, op: ops.Apply) -> None:
    """Emit a reduction over rows: by each thread, by shuffles in a warp, by shared memory in a warpgroup."""
    x, target, t = op.arguments[0], role.storage(op.result).name, op.arguments[0].type
    assert isinstance(t, TileT)
    if t.shape[0] == 1:
        _emit_copy(role, op)
        return
    largest = "true" if op.kind.column_reduction == "max" else "false"
    role.out.line(f"cuir::column_part<{largest}>({role.elements.array(x)}, {target});")
    if role.threads == 32:
        return
    area = role.exchange_area
    role.out.line(f"cuir::give_columns({target}, {area}, warp, lane);")
    role.emit_join()
    role.out.line(f"cuir::take_columns<{largest}>({target}, {area}, lane);")
    role.emit_join()  # before the next reduction writes there


@prints("tile.row_part")
def row_part(role: RolePrinter, op: row_parts.RowPart) -> None:
    """Emit each thread's part of the sums of rows."""
    role.out.line(f"cuir::row_part({role.elements.array(op.x)}, {role.storage(op.result).name});")


@prints("tile.quad_sum")
def quad_sum(role: RolePrinter, op: row_parts.QuadSum) -> None:
    """Emit the sums over the four threads that share a row."""
    source, target, t = role.storage(op.x).name, role.storage(op.result).name, op.result.type
    assert isinstance(t, TileT)
    role.elements.emit_loop(t, lambda at: f"{target}[{at.r}] = cuir::quad_sum({source}[{at.r}]);")


@prints("tile.nothing")
def forget(role: RolePrinter, op: row_parts.Nothing) -> None:
    """Emit registers that hold no value yet.

    Nobody reads them: a product that takes them over starts from zeros.
    """
    role.out.line(f"cuir::forget({role.storage(op.result).name});")
