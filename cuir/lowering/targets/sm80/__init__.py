"""sm_80: products of warps (mma.sync), copies by cp.async."""

from __future__ import annotations

from ....ops.limits import TARGETS
from ...cuda.registry import Printers
from ..target import Target
from . import copies, memory, products, single
from .functions import PARTS

TARGET = Target(
    TARGETS["sm_80"],
    Printers.join(products.PRINTERS, copies.PRINTERS, memory.PRINTERS, single.PRINTERS),
    PARTS,
    "#include <cute/arch/copy_sm75.hpp>\n#include <cute/arch/copy_sm80.hpp>\n#include <cute/arch/mma_sm80.hpp>",
)
