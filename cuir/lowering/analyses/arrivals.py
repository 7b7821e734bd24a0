"""Arrivals that need a proxy fence.

After such an arrival an engine may overwrite memory that the role's lanes have read by ordinary loads. These reads go
through another proxy than the engine's writes, so without a fence between them the copy might overtake reads that are
under way. A fence in the program after the last of these reads does as well.

Signals of a cluster's CTAs to one another, and whether a CTA may exit before all have come.
"""

from __future__ import annotations

from xdsl.ir import Operation

from ..ir import machine_ops as machine
from ..ir import ops
from ..ir.fixed_point import Forward
from ..ir.ir_walk import every, is_inlined
from .memory import Memory, iterate_accesses, iterate_evaluated


def find_fenced_arrivals(role: ops.Role, memory: Memory | None = None) -> frozenset[Operation]:
    """Return the arrivals that need a proxy fence: an unfenced read may precede them on some path."""
    kernel = role.parent_op()
    assert isinstance(kernel, ops.Kernel)
    arrivals = _Arrivals(memory or Memory(kernel))
    if arrivals.memory.refilled:
        arrivals.run(role.body.block, False)
    return frozenset(arrivals.unfenced_arrivals)


class _Arrivals(Forward[bool]):
    """Flow of unfenced reads through a role: whether there are any, and the arrivals that need a fence."""

    def __init__(self, memory: Memory):
        super().__init__()
        self.memory = memory
        self.unfenced_arrivals: set[Operation] = set()

    def join(self, a: bool, b: bool) -> bool:
        """Return whether reads are unfenced on either path."""
        return a or b

    def transfer(self, op: Operation, state: bool) -> bool:
        """Return whether reads are unfenced after an operation."""
        if isinstance(op, ops.At) or (len(op.results) == 1 and is_inlined(op.results[0])):
            return state  # evaluated in its readers
        unfenced = state or any(self._reads(part) for part in iterate_evaluated(op))
        if isinstance(op, ops.Perform):
            effects = op.entry.effects
            if effects.fences:
                return False
            if effects.arrives is not None and unfenced:
                self.unfenced_arrivals.add(op)
        return unfenced

    def _reads(self, op: Operation) -> bool:
        return any(
            isinstance(a.array, ops.Shared)
            and not a.writes
            and a.access.proxy == "generic"
            and self.memory.of(a.place) in self.memory.refilled
            for a in iterate_accesses(op)
        )


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


def find_cluster_barriers(kernel: ops.Kernel) -> frozenset[str]:
    """Return the names of the barriers at which CTAs of a cluster arrive for one another."""
    barriers = set[str]()
    for op in every(kernel):
        if isinstance(op, ops.Perform) and op.entry.effects.arrives and op.const("cluster", False):
            barrier = op.arg(op.entry.effects.arrives).owner
            barrier = barrier.array.owner if isinstance(barrier, ops.At) else barrier
            assert isinstance(barrier, ops.Barrier), barrier
            barriers.add(barrier.symbol.data)
    return frozenset(barriers)


def _waits_next(arrival: Operation, barrier: ops.Barrier) -> bool:
    """Return whether the next operation with an effect is a wait at this barrier."""
    op = arrival.next_op
    while op is not None and not isinstance(op, ops.Perform) and not op.regions:
        op = op.next_op
    waits = op.entry.effects.waits if isinstance(op, ops.Perform) else None
    return isinstance(op, ops.Perform) and waits is not None and op.arg(waits).owner is barrier


__all__ = ["awaits_all_signals", "find_cluster_barriers", "find_fenced_arrivals"]
