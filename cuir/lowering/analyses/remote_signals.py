"""Signals of a cluster's CTAs to one another, and whether a CTA may exit before all have come."""

from __future__ import annotations

from xdsl.ir import Operation

from ..ir import machine_ops as machine
from ..ir import ops
from ..ir.ir_walk import every


def awaits_all_signals(kernel: ops.Kernel) -> bool:
    """Return whether every signal of other CTAs has arrived when a worker is done.

    It has if each signal is an arrival of all workers of one role at all CTAs, for which these workers wait next: a
    worker's wait for a phase ends when all have arrived, at every CTA, and each waits for this phase in its own CTA.
    """
    queue = next((op for op in kernel.body.block.ops if isinstance(op, machine.Queue)), None)
    if queue is not None and queue.drawn_for_others:
        return False
    barriers: set[Operation] = set()
    for role in kernel.roles:
        for op in role.walk():
            if not isinstance(op, ops.Perform) or not op.const("cluster", False):
                continue
            arrives = op.entry.effects.arrives
            if arrives is None or op.const("cluster") is not True:
                return False
            barrier = op.arg(arrives).owner
            if not isinstance(barrier, ops.Barrier) or barrier.count.data != kernel.cluster.data * role.workers.data:
                return False
            if not _waits_next(op, barrier):
                return False
            barriers.add(barrier)
    local_arrivals = (
        op for op in every(kernel) if isinstance(op, ops.Perform) and op.entry.effects.arrives and not op.const("cluster", False)
    )
    return not any(op.arg(str(op.entry.effects.arrives)).owner in barriers for op in local_arrivals)


def _waits_next(arrival: Operation, barrier: ops.Barrier) -> bool:
    """Return whether the next operation with an effect is a wait at this barrier."""
    op = arrival.next_op
    while op is not None and not isinstance(op, ops.Perform) and not op.regions:
        op = op.next_op
    waits = op.entry.effects.waits if isinstance(op, ops.Perform) else None
    return isinstance(op, ops.Perform) and waits is not None and op.arg(waits).owner is barrier


__all__ = ["awaits_all_signals"]
