"""The way of loads in the order of operands of TF32 products."""

from __future__ import annotations

from ...layouts.tile_layouts import EIGHTS
from ...select.move_ways import Move
from ...select.ways import Verdict, Ways, fits

WAYS = Ways()


@WAYS.way("load", "eights")
def load_eights(move: Move) -> Verdict | None:
    """Load eight neighbours of each 32 columns, 16 bytes at a time."""
    if move.tile.layout != EIGHTS:
        return None
    return fits("the tile is the left operand of TF32 products alone, whose right operands lie column by column")
