"""Ways that the instructions of warps allow: ldmatrix, and reads of operands in the order of TF32 products."""

from __future__ import annotations

from ...layouts.tile_layouts import EIGHTS
from ...select.move_ways import Move, check_blocks, describe_blocks
from ...select.ways import Verdict, Ways, fits, misfits

WAYS = Ways()


@WAYS.way("load", "eights")
def load_eights(move: Move) -> Verdict | None:
    """Load eight neighbours of each 32 columns, 16 bytes at a time."""
    if move.tile.layout != EIGHTS:
        return None
    return fits("the tile is the left operand of TF32 products alone, whose right operands lie column by column")


@WAYS.way("load", "ldmatrix")
def load_blocks(move: Move) -> Verdict | None:
    """Load four blocks of 8 x 8 halves at a time."""
    if not move.is_matrix:
        return None
    reason = move.check_rows() or check_blocks(move)
    return misfits(reason) if reason else fits(describe_blocks(move))
