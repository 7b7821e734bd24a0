"""sm_100a: products into tensor memory (tcgen05), and loads of it; all else is shared with sm_90a.

wgmma is gone, so that `mma_async` is refused. Its code is compiled by the tests and has run on no GPU.
"""

from __future__ import annotations

from pathlib import Path

from ....ops.limits import TARGETS
from ...cuda.prelude import read_parts
from .. import sm90
from ..target import Target
from . import tcgen05

# Statements of the frame: the columns, where their first one is told, and its address.
PHRASES = {
    "allocate tensor memory": "if (warpgroup == 0 && warp == 0) cuir::allocate_columns<{}>({});",
    "read tensor memory's address": "const uint32_t tensor_memory = *{};",
    "free tensor memory": "if (warpgroup == 0 && warp == 0) cuir::free_columns<{}>(tensor_memory);",
}

TARGET = Target(
    TARGETS["sm_100a"],
    tcgen05.PRINTERS,
    read_parts(Path(__file__).parent / "include", "tensor_memory"),
    phrases=PHRASES,
    base=sm90.TARGET,
    ways=tcgen05.WAYS,
)
