"""sm_80: m16n8k16 of mma.sync, of bf16 and TF32 too, copies by cp.async; based on sm_75."""

from __future__ import annotations

from pathlib import Path

from ....ops.limits import TARGETS
from ...cuda.prelude import read_lines, read_parts
from ...cuda.registry import Printers
from .. import sm75
from ..target import Target
from . import half_products, single, thread_copies, warp_ways

INCLUDE = Path(__file__).parent / "include"

TARGET = Target(
    TARGETS["sm_80"],
    Printers.join(half_products.PRINTERS, thread_copies.PRINTERS, single.PRINTERS),
    read_parts(INCLUDE, "products_f32", "async_copies"),
    read_lines(INCLUDE, "#include <"),
    base=sm75.TARGET,
    ways=warp_ways.WAYS,
)
