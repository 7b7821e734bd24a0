"""sm_80: products of warps (mma.sync), copies by cp.async."""

from __future__ import annotations

from pathlib import Path

from ....ops.limits import TARGETS
from ...cuda.prelude import read_lines, read_parts
from ...cuda.registry import Printers
from ..target import Target
from . import single, thread_copies, warp_products, warp_ways

INCLUDE = Path(__file__).parent / "include"

TARGET = Target(
    TARGETS["sm_80"],
    Printers.join(warp_products.PRINTERS, thread_copies.PRINTERS, single.PRINTERS),
    read_parts(INCLUDE, "matrices", "products_f32", "async_copies"),
    read_lines(INCLUDE, "#include <"),
    ways=warp_ways.WAYS,
)
