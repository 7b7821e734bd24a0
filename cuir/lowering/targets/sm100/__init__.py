"""sm_100a: a skeleton that shares its printers with sm_90a.

It has no asynchronous products: wgmma is gone, and tcgen05 and tensor memory are not implemented, so `mma_async` is
refused and products are those of warps. Its code is compiled by the tests and has run on no GPU. The next step is
`warpgroup_products.py` with printers for tcgen05, registered as those of sm_90a are.
"""

from __future__ import annotations

from ....ops.limits import TARGETS
from ...cuda.registry import Printers
from .. import sm90
from ..target import Target

TARGET = Target(TARGETS["sm_100a"], Printers(), base=sm90.TARGET)
