"""sm_90a: products of warpgroups (wgmma), the copy engine (TMA), mbarriers, clusters; based on sm_89."""

from __future__ import annotations

from pathlib import Path

from ....ops.limits import TARGETS
from ...cuda.prelude import read_lines, read_parts
from ...cuda.registry import Printers
from ...select.ways import Ways
from .. import sm89
from ..target import Target
from . import arrival_ways, barriers, bulk_copies, matrix_stores, warpgroup_products, warpgroup_ways, widened

INCLUDE = Path(__file__).parent / "include"

# Statements of the frame: barriers and tensor maps, dispatch of warps, registers of a warpgroup, end of a cluster.
PHRASES = {
    "init mbarrier": "cuir::Bar::init({}, {});",
    "fence of inits": "cutlass::arch::fence_barrier_init();",
    "prefetch map": "cute::prefetch_tma_descriptor(&{});",
    "arrive in cluster": "cute::cluster_arrive_relaxed();",  # barriers have their fence
    "wait for cluster": "cute::cluster_wait();",
    "sync of cluster": "cute::cluster_sync();",
    "elect": "cute::elect_one_sync()",
    "more registers": "cutlass::arch::warpgroup_reg_alloc<{}>();",
    "fewer registers": "cutlass::arch::warpgroup_reg_dealloc<{}>();",
}

TARGET = Target(
    TARGETS["sm_90a"],
    Printers.join(warpgroup_products.PRINTERS, bulk_copies.PRINTERS, matrix_stores.PRINTERS, barriers.PRINTERS, widened.PRINTERS),
    read_parts(INCLUDE, "mbarriers", "matrix_stores", "chunks", "fences", "descriptors", "queues", "products_8bit"),
    read_lines(INCLUDE, "#include <"),
    read_lines(INCLUDE, "namespace "),
    PHRASES,
    sm89.TARGET,
    Ways.join(warpgroup_ways.WAYS, arrival_ways.WAYS),
)
