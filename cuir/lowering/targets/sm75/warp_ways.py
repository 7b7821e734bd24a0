"""Ways of loads that ldmatrix allows, and of products whose operands it loads."""

from __future__ import annotations

from ....syntax.types import F32
from ...select.move_ways import Move, check_blocks, describe_blocks
from ...select.product_ways import Product
from ...select.ways import Verdict, Ways, fits, misfits

WAYS = Ways()
BLOCKS = "mma.sync"


@WAYS.way("load", "ldmatrix")
def load_blocks(move: Move) -> Verdict | None:
    """Load four blocks of 8 x 8 halves at a time."""
    if not move.is_matrix:
        return None
    reason = move.check_rows() or check_blocks(move)
    return misfits(reason) if reason else fits(describe_blocks(move))


@WAYS.way("multiply", BLOCKS)
def multiply_blocks(product: Product) -> Verdict | None:
    """Multiply operands whose blocks of 16 bytes a row ldmatrix loads."""
    a, b = product.elements
    return fits(product.describe()) if a == b and a != F32 else None
