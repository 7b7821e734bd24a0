"""The way of products of 8-bit floats."""

from __future__ import annotations

from ...select.product_ways import Product
from ...select.ways import Verdict, Ways

WAYS = Ways()
BYTES = "mma.sync m16n8k32"


@WAYS.way("multiply", BYTES)
def multiply_bytes(product: Product) -> Verdict | None:
    """Multiply 8-bit floats, whose blocks ldmatrix loads."""
    return product.judge_operands() if product.of_one_size(1) else None
