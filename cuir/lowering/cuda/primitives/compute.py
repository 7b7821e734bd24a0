"""Printers of reductions of rows and of columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...ir import ops, row_parts
from ...ir.exchanges import GiveColumns, TakeColumns
from ...ir.ir_types import TileT
from ...select.reduction_ways import FOUR_WARPS
from ...select.ways import way_of
from ..print_scope import index_of
from ..registry import code_of, prints

if TYPE_CHECKING:
    from ..role import RolePrinter


@prints("row_max", "row_sum")
def reduce_rows(role: RolePrinter, op: ops.Apply) -> None:
    """Emit a reduction of each row, in the way that was selected."""
    role.target.code("reduce rows", way_of(op))(role, op)


@prints("col_max", "col_sum", "tile.give_columns")
def reduce_columns(role: RolePrinter, op: ops.Apply | GiveColumns) -> None:
    """Emit a reduction of each column, in the way that was selected."""
    role.target.code("reduce columns", way_of(op))(role, op)


@code_of("reduce rows", "one row")
def fold_line(role: RolePrinter, op: ops.Apply) -> None:
    """Emit the maximum or the sum of a single row."""
    target = role.storage(op.result).name
    role.out.line(f"{target}[0] = cuir::line_{op.kind.reduction}({role.elements.array(op.arguments[0])});")


@code_of("reduce rows", "maxima of four threads")
def find_maxima(role: RolePrinter, op: ops.Apply) -> None:
    """Emit the maximum of each row, in which no NaN has a sign."""
    role.out.line(f"cuir::row_max({role.elements.array(op.arguments[0])}, {role.storage(op.result).name});")


@code_of("reduce rows", "maxima of four threads, NaNs of either sign")
def find_any_maxima(role: RolePrinter, op: ops.Apply) -> None:
    """Emit the maximum of each row."""
    role.out.line(f"cuir::row_max_nan({role.elements.array(op.arguments[0])}, {role.storage(op.result).name});")


@code_of("reduce rows", "sums of four threads")
def add_rows(role: RolePrinter, op: ops.Apply) -> None:
    """Emit the sum of each row."""
    target, t = role.storage(op.result).name, op.result.type
    assert isinstance(t, TileT)
    part = role.out.temp("part")
    array = role.elements.array(op.arguments[0])
    role.out.line(f"float {part}[{role.fragment(t).row_values}];\ncuir::row_part({array}, {part});")
    role.elements.emit_loop(t, lambda at: f"{target}[{at.r}] = cuir::quad_sum({part}[{at.r}]);")


@code_of("reduce rows", "copied")
@code_of("reduce columns", "copied")
def copy(role: RolePrinter, op: ops.Apply) -> None:
    """Emit a reduction along a dim of length 1."""
    target, t = role.storage(op.result).name, op.result.type
    assert isinstance(t, TileT)
    array = role.elements.array(op.arguments[0])
    role.elements.emit_loop(t, lambda at: f"{target}[{index_of(t, at)}] = {array}[{index_of(t, at)}];")


def _is_maximum(op: ops.Apply | GiveColumns | TakeColumns) -> str:
    return "true" if op.entry.traits.column_reduction == "max" else "false"


@code_of("reduce columns", "one warp")
def fold_warp(role: RolePrinter, op: ops.Apply | GiveColumns) -> None:
    """Emit a reduction over the rows of a warp, by each thread and by shuffles."""
    role.out.line(f"cuir::column_part<{_is_maximum(op)}>({role.elements.array(op.operands[0])}, {role.storage(op.result).name});")


@code_of("reduce columns", FOUR_WARPS)
def fold_warps(role: RolePrinter, op: GiveColumns) -> None:
    """Emit a reduction over the rows of each warp, and the store of its result for the others."""
    fold_warp(role, op)
    role.out.line(f"cuir::give_columns({role.storage(op.result).name}, {role.exchange_area}, warp, lane);")


@prints("tile.take_columns")
def take_columns(role: RolePrinter, op: TakeColumns) -> None:
    """Emit the loads of what a worker's warps have given, and its reduction."""
    role.out.line(f"cuir::take_columns<{_is_maximum(op)}>({role.storage(op.result).name}, {role.exchange_area}, lane);")


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
