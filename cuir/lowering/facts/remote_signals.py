"""Whether a CTA of a cluster may be gone while another still signals it."""

from __future__ import annotations

from xdsl.ir import Operation

from ..ir import machine, ops
from ..ir.walk import every


def all_awaited(kernel: ops.Kernel) -> bool:
    """Whether whoever is done has been reached by every signal of the other CTAs: each is an arrival of all workers of one role at all CTAs, which these workers wait for next.

    Phase by phase: a worker's wait ends when all have arrived, at every CTA, and each of them waits for this phase where it is.
    """
    queue = next((op for op in kernel.body.block.ops if isinstance(op, machine.Queue)), None)
    if queue is not None and queue.drawn_for_others:
        return False
    met: set[Operation] = set()
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
            met.add(barrier)
    others = (op for op in every(kernel) if isinstance(op, ops.Perform) and op.entry.effects.arrives and not op.const("cluster", False))
    return not any(op.arg(str(op.entry.effects.arrives)).owner in met for op in others)


def _waits_next(arrival: Operation, barrier: ops.Barrier) -> bool:
    """Whether the next thing that is done is to wait at this barrier."""
    op = arrival.next_op
    while op is not None and not isinstance(op, ops.Perform) and not op.regions:
        op = op.next_op
    waits = op.entry.effects.waits if isinstance(op, ops.Perform) else None
    return isinstance(op, ops.Perform) and waits is not None and op.arg(waits).owner is barrier


__all__ = ["all_awaited"]
