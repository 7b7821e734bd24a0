"""Names of positions in loops over a thread's values of a tile."""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.ir_types import TileT
from ..layouts.tile_layouts import Fragment


@dataclass(frozen=True)
class Position:
    """A position in a loop over a tile, as texts.

    `i` is the element of a full tile, `r` the row value, `c` the column value, and `k` the column less the thread's first.
    """

    i: str
    r: str
    c: str
    k: str


LOOP = Position("i_", "r_", "c_", "k_")


def index_of(t: TileT, at: Position) -> str:
    """Return the index of a position in the array of a tile, by its layout."""
    if t.layout.varies_by_row:
        return at.i if t.layout.varies_by_column else at.r
    return at.c if t.layout.varies_by_column else "0"


def positions(frag: Fragment) -> list[tuple[str, str]]:
    """Return the declarations of row value, column value and column of element i_ of a full tile."""
    group = f"i_ / 4 % {frag.groups}" if frag.slabs > 1 else "i_ / 4"
    row = f"2 * (i_ / {4 * frag.groups}) + i_ / 2 % 2" if frag.slabs > 1 else "i_ / 2 % 2"
    return [
        ("r_", f"const int r_ = {row};"),
        ("c_", f"const int c_ = 2 * ({group}) + i_ % 2;"),
        ("k_", f"const int k_ = 8 * ({group}) + i_ % 2;"),
    ]
