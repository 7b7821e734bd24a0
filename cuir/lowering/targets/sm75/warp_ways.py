"""Ways of loads that ldmatrix allows, of stores of such blocks, and of products whose operands it loads."""

from __future__ import annotations

from ...layouts.tile_layouts import FULL
from ...select.move_ways import Move, check_blocks, describe_blocks
from ...select.product_ways import Product
from ...select.ways import Verdict, Ways, fits, misfits

WAYS = Ways()
HALF_STEPS = "mma.sync m16n8k8"


@WAYS.way("load", "ldmatrix")
def load_blocks(move: Move) -> Verdict | None:
    """Load four blocks of 8 x 8 halves at a time."""
    if not move.is_matrix:
        return None
    reason = move.check_rows() or check_blocks(move)
    return misfits(reason) if reason else fits(describe_blocks(move))


@WAYS.way("store", "pairs of halves")
def store_pairs(move: Move) -> Verdict | None:
    """Store two neighbours at a time: eight rows of 16 bytes, which lie in different banks."""
    if not move.is_matrix or move.tile.layout != FULL:
        return None
    reason = "a mask selects elements" if move.masked else move.check_rows() or check_blocks(move, of_parts=True)
    return misfits(reason) if reason else fits(describe_blocks(move))


@WAYS.way("multiply", HALF_STEPS)
def multiply_half_steps(product: Product) -> Verdict | None:
    """Multiply halves, whose blocks ldmatrix loads, by two instructions a step."""
    return product.judge_operands(in_blocks=True) if product.of_one_size(2) else None
