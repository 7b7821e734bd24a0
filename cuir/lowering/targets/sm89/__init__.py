"""sm_89: 8-bit floats, and products of them by mma.sync; based on sm_80."""

from __future__ import annotations

from pathlib import Path

from ....ops.limits import TARGETS
from ...cuda.prelude import read_parts
from .. import sm80
from ..target import Target
from . import byte_products, byte_ways

INCLUDE = Path(__file__).parent / "include"

TARGET = Target(
    TARGETS["sm_89"],
    byte_products.PRINTERS,
    read_parts(INCLUDE, "floats_8bit", "byte_products"),
    base=sm80.TARGET,
    ways=byte_ways.WAYS,
)
