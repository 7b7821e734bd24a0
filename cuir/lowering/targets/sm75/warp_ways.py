"""The way of loads that ldmatrix allows."""

from __future__ import annotations

from ...select.move_ways import Move, check_blocks, describe_blocks
from ...select.ways import Verdict, Ways, fits, misfits

WAYS = Ways()


@WAYS.way("load", "ldmatrix")
def load_blocks(move: Move) -> Verdict | None:
    """Load four blocks of 8 x 8 halves at a time."""
    if not move.is_matrix:
        return None
    reason = move.check_rows() or check_blocks(move)
    return misfits(reason) if reason else fits(describe_blocks(move))
