"""Functions of a number a row that are rarely more than one instruction: the warp takes one branch for all its rows. Owns which they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..syntax.nodes import Expr, Literal
from .flat import operation

if TYPE_CHECKING:
    from .tiles import TileEmitter


def by_rows(tiles: TileEmitter, expr: Expr) -> str | None:
    """The name of an array with such a function of an [R, 1] tile, computed before the loop that reads it; None for other expressions."""
    op, args = operation(tiles.checked, expr)
    inverse = op == "/" and isinstance(args[0], Literal) and args[0].value == 1 and not expr.decides
    if op != "log2" and not inverse:
        return None
    key = f"rows:{id(expr)}"
    if key not in tiles.role.hoisted:
        given, array = tiles.array(args[-1]), tiles.out.temp("y")
        tiles.out.line(f"float {array}[{tiles.role.fragment(tiles.role.tile_type(expr)).row_values}];")
        tiles.out.line(f"cuir::{'one_over' if inverse else 'log2'}({given}, {array});")
        tiles.role.hoisted[key] = array
    return tiles.role.hoisted[key]


__all__ = ["by_rows"]
