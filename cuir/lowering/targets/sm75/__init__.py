"""sm_75: products of warps (mma.sync), whose operands ldmatrix loads."""

from __future__ import annotations

from pathlib import Path

from ....ops.limits import TARGETS
from ...cuda.prelude import read_parts
from ..target import Target
from . import warp_products, warp_ways

INCLUDE = Path(__file__).parent / "include"

TARGET = Target(
    TARGETS["sm_75"],
    warp_products.PRINTERS,
    read_parts(INCLUDE, "matrices"),
    replacements=read_parts(INCLUDE, "extremes"),
    ways=warp_ways.WAYS,
)
