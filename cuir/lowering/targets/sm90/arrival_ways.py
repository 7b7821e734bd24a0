"""Ways of arrivals at mbarriers: by one lane, or by one lane of each warp, whose lanes join before."""

from __future__ import annotations

from xdsl.ir import Operation

from ...ir import ops
from ...ir.synchronisation import Join
from ...select.hardware_barriers import find_barrier
from ...select.join_ways import JOINED, ONE_LANE, UNJOINED, WITH_ARRIVAL, find_join_before, is_arrival
from ...select.role_facts import RoleFacts
from ...select.ways import Verdict, Ways, fits

WAYS = Ways()
CLUSTER, COMPILER_BARRIER = "cluster", "compiler barrier"


@WAYS.way("order", CLUSTER)
def order_cluster(op: ops.Perform, role: RoleFacts) -> Verdict | None:
    """Release to, or acquire from, the CTAs of the cluster."""
    if find_barrier(op.arg("bar")).symbol.data not in role.cluster_barriers or (op.entry.effects.releases and not op.const("cluster")):
        return None
    return fits("CTAs of the cluster arrive here, and may hand over tensors")


@WAYS.way("order", "CTA")
def order_cta(op: ops.Perform, role: RoleFacts) -> Verdict:
    """Release to, or acquire from, the CTA alone."""
    return fits("no tensor is handed over between CTAs here")


@WAYS.way("join", WITH_ARRIVAL)
def join_with_arrival(op: Join, role: RoleFacts) -> Verdict | None:
    """Join in the function of the arrival."""
    if op.lanes.data == "none" or not is_arrival(op.next_op):
        return None
    whole = op.lanes.data == "worker" and role.threads > 32
    return None if whole else fits("one lane arrives when the lanes of its warp have met")


@WAYS.way("join", COMPILER_BARRIER)
def keep_reads_before(op: Join, role: RoleFacts | None) -> Verdict | None:
    """Keep what a single lane reads before its arrival there."""
    if role is None or not role.single or not role.exchanges_tensors or not _is_counted(op.next_op):
        return None
    return fits("one lane runs the role; nvcc may move no read of a tensor that others overwrite behind its arrival")


def _is_counted(op: Operation | None) -> bool:
    """Return whether an operation is an arrival at an mbarrier, with or without bytes."""
    return isinstance(op, ops.Perform) and bool(op.entry.effects.arrives) and not (op.kind.hardware or op.entry.effects.completes)


@WAYS.way("arrive", ONE_LANE)
def arrive_single(op: ops.Perform, role: RoleFacts) -> Verdict | None:
    """Arrive from one lane."""
    return fits("one lane runs the role") if role.single else None


@WAYS.way("arrive", JOINED)
def arrive_joined(op: ops.Perform, role: RoleFacts) -> Verdict | None:
    """Arrive from a lane of each warp, whose lanes have met."""
    join = find_join_before(op)
    return None if join is None or join_with_arrival(join, role) is None else fits("each warp arrives once, when its lanes have met")


@WAYS.way("arrive", UNJOINED)
def arrive_unjoined(op: ops.Perform, role: RoleFacts) -> Verdict:
    """Arrive from a lane of each warp, although nothing orders what the others do."""
    return fits("each warp arrives once; no join of its lanes stands before")
