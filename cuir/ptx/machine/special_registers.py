"""Special registers: places of threads, CTAs and clusters, sizes, masks of lanes, clocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .operands import Array


def make_special(m: Any, name: str) -> Array:  # of a Machine, whose module imports this one
    """Return the values of a special register for all threads, or the one value of all."""
    local = np.arange(m.count) % m.width
    cta = np.arange(m.count) // m.width + m.ctas.start
    bx, by, _ = m.launch.block
    lane = local & 31
    one = np.uint64(1)
    counts = {"nctaid": m.launch.grid, "ntid": m.launch.block, "cluster_nctaid": m.launch.cluster}
    counts["nclusterid"] = tuple(g // c for g, c in zip(m.launch.grid, m.launch.cluster))
    places: dict[str, Callable[[], tuple[Array, ...]]] = {
        "tid": lambda: (local % bx, local // bx % by, local // (bx * by)),
        "ctaid": lambda: m.launch.find_cta(cta),
        "cluster_ctaid": lambda: tuple(p % c for p, c in zip(m.launch.find_cta(cta), m.launch.cluster)),
        "clusterid": lambda: tuple(p // c for p, c in zip(m.launch.find_cta(cta), m.launch.cluster)),
    }
    plain, _, dim = name[1:].partition(".")
    if dim and plain in places:
        return np.asarray(places[plain]()["xyz".index(dim)]).astype(np.int64)
    if dim and plain in counts:
        return np.array(counts[plain]["xyz".index(dim)], np.int64)
    lanes: dict[str, Callable[[], Array]] = {
        "%laneid": lambda: lane,
        "%warpid": lambda: local >> 5,
        "%cluster_ctarank": lambda: cta % m.clusters.size,
        "%lanemask_eq": lambda: one << lane.astype(np.uint64),
        "%lanemask_lt": lambda: (one << lane.astype(np.uint64)) - one,
        "%lanemask_le": lambda: (np.uint64(2) << lane.astype(np.uint64)) - one,
        "%lanemask_gt": lambda: np.uint64(0xFFFFFFFF) & ~((np.uint64(2) << lane.astype(np.uint64)) - one),
        "%lanemask_ge": lambda: np.uint64(0xFFFFFFFF) & ~((one << lane.astype(np.uint64)) - one),
    }
    if name in lanes:
        return lanes[name]().astype(np.int64)
    sizes = {"%nwarpid": m.width // 32, "WARP_SZ": 32, "%smid": 0, "%nsmid": 1, "%gridid": 0, "%cluster_nctarank": m.clusters.size}
    sizes |= {"%dynamic_smem_size": m.launch.shared, "%total_smem_size": m.shared_size, "%is_explicit_cluster": m.clusters.size > 1}
    if name in sizes:
        return np.array(int(sizes[name]), np.int64)
    if name in ("%clock", "%clock64", "%clock_hi", "%globaltimer", "%globaltimer_lo", "%globaltimer_hi"):
        return np.array(m.tick & 0x7FFFFFFF, np.int64)
    raise m.findings.stop("O123", f"the machine does not know the special register `{name}`", None)
