"""Ways that Hopper's instructions allow: stmatrix, and conversions of 8-bit floats between memory and registers."""

from __future__ import annotations

from ....syntax.types import F8E4M3, F8E5M2
from ...layouts.tile_layouts import CHUNKS, FOURS
from ...select.move_ways import NO_PANELS, Move, check_blocks, describe_blocks
from ...select.ways import Verdict, Ways, fits, misfits

WAYS = Ways()
BYTES = (F8E4M3, F8E5M2)


def _check_byte_pairs(move: Move) -> str:
    """Return why two neighbouring 8-bit columns are not read at once, "" if they can be."""
    if move.transposed:
        return move.check_rows()
    if not move.in_panels:
        return NO_PANELS
    return f"the tile has {move.slabs} slabs of rows" if move.slabs != 1 else ""


@WAYS.way("load", "chunks")
def load_chunks(move: Move) -> Verdict | None:
    """Load 16 neighbouring 8-bit numbers at once, as halves."""
    return fits("the tile is widened and stored again alone, so that lanes may hold whole chunks") if move.tile.layout == CHUNKS else None


@WAYS.way("load", "widened pairs")
def load_widened(move: Move) -> Verdict | None:
    """Load two neighbouring 8-bit numbers at once, as f16."""
    if move.element == move.tile.element:
        return None
    reason = _check_byte_pairs(move)
    return (
        misfits(reason) if reason else fits(f"memory holds {move.element.name}, registers {move.tile.element.name}, rows in whole panels")
    )


@WAYS.way("load", "fours")
def load_fours(move: Move) -> Verdict | None:
    """Load four neighbours of each 16 columns."""
    if move.tile.layout != FOURS:
        return None
    return fits("the tile is the left operand of products by 8-bit floats alone, which lie column by column")


@WAYS.way("load", "byte pairs")
def load_byte_pairs(move: Move) -> Verdict | None:
    """Load two neighbouring 8-bit numbers at once."""
    if move.tile.element not in BYTES or not move.tile.layout.is_accumulator:
        return None
    reason = move.check_rows() or _check_byte_pairs(move)
    return misfits(reason) if reason else fits(f"8-bit numbers of whole panels, one slab of {move.tile.shape[0]} rows")


@WAYS.way("store", "chunks")
def store_chunks(move: Move) -> Verdict | None:
    """Store 16 neighbouring halves at once."""
    return fits("the tile was loaded in chunks, and widened") if move.tile.layout == CHUNKS else None


@WAYS.way("store", "stmatrix")
def store_blocks(move: Move) -> Verdict | None:
    """Store four blocks of 8 x 8 halves at a time."""
    if not move.is_matrix:
        return None
    reason = "a mask selects elements" if move.masked else check_blocks(move)
    return misfits(reason) if reason else fits(describe_blocks(move))
