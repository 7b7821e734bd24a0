"""f32 tiles made of index tiles and scalars alone, such as a bias linear in the distance: a number a row and a slope along the columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..syntax.nodes import Expr
from ..syntax.types import F32, I32, Scalar
from .flat import operation
from .index_tiles import zipped
from .values import summand

if TYPE_CHECKING:
    from .tiles import TileEmitter


@dataclass(frozen=True)
class Affine:
    """An f32 tile: element = rows[r] + slope * column, the column counted as asked for. One text if all rows are alike; "" is a slope of 0."""

    rows: tuple[str, ...]
    slope: str

    @property
    def negative(self) -> Affine:
        return Affine(tuple(f"(-{x})" for x in self.rows), f"(-{self.slope})" if self.slope else "")


def affine(tiles: TileEmitter, expr: Expr, of_tile: bool = False) -> Affine | None:
    """An expression as such a tile: one multiply-add an element, within two roundings of its largest term. None if it is none.

    Columns count from the thread's first one; `of_tile`: from the tile's, so that rows[r] is the same in all threads of a row.
    """
    t = tiles.checked.type_of(expr)
    if tiles.decides(expr):
        return None
    if isinstance(t, Scalar):
        return Affine((tiles.uniform(expr),), "") if t.dtype == F32 else None
    op, args = operation(tiles.checked, expr)
    if op == "cast" and tiles.role.dtype(args[0]) == I32:
        value = tiles.linear(args[0])
        if value is None:
            return None
        start = "" if not of_tile or not value.slope else f" - {value.slope} * col" if value.slope > 0 else f" + {-value.slope} * col"
        return Affine(tuple(f"float({summand(x)}{start})" for x in value.rows), f"{value.slope}.f" if value.slope else "")
    if op not in ("+", "-", "*", "neg"):
        return None
    parts = [affine(tiles, a, of_tile) for a in args]
    first, second = parts[0], parts[-1]
    if first is None or second is None:
        return None
    if op == "neg":
        return first.negative
    rows = zipped(lambda x, y: f"({x} {op} {y})", first.rows, second.rows)
    if op == "*":
        slope = _product(first, second)
        return None if slope is None else Affine(rows, slope)
    last = second.slope if op == "+" else second.negative.slope
    return Affine(rows, f"({first.slope} + {last})" if first.slope and last else first.slope or last)


def _product(x: Affine, y: Affine) -> str | None:
    """The slope of a product; None if it is not the same for all rows, or there is none."""
    if x.slope and y.slope:
        return None
    if y.slope:
        x, y = y, x
    if not x.slope:
        return ""
    return f"({x.slope} * {y.rows[0]})" if len(y.rows) == 1 else None
