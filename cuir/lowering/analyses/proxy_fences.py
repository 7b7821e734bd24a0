"""Arrivals that need a proxy fence.

After such an arrival an engine may overwrite memory that the role's lanes have read by ordinary loads. These reads go
through another proxy than the engine's writes, so without a fence between them the copy might overtake reads that are
under way. A fence in the program after the last of these reads does as well.
"""

from __future__ import annotations

from xdsl.ir import Block, Operation

from ..ir import ops
from ..ir.inlining import is_inlined
from ..ir.ir_walk import every
from .memory import Array, Memory, iterate_accesses, iterate_evaluated


def find_fenced_arrivals(role: ops.Role) -> frozenset[Operation]:
    """Return the arrivals that need a proxy fence: an unfenced read may precede them on some path."""
    arrivals = _Arrivals(role)
    if arrivals.refilled:
        arrivals.block(role.body.block, False)
    return frozenset(arrivals.unfenced_arrivals)


class _Arrivals:
    """The walk over a role: arrays that engines refill, and arrivals that need a fence."""

    def __init__(self, role: ops.Role):
        kernel = role.parent_op()
        assert isinstance(kernel, ops.Kernel)
        self.memory = Memory(kernel)
        self.refilled: frozenset[Array] = frozenset(
            self.memory.of(a.place)
            for op in every(kernel)
            for a in iterate_accesses(op)
            if isinstance(a.array, ops.Shared) and a.writes and a.access.proxy == "async"
        )
        self.unfenced_arrivals: set[Operation] = set()

    def block(self, block: Block, unfenced: bool) -> bool:
        """Return whether reads are unfenced after a block; `unfenced` says so for its start."""
        for op in block.ops:
            if isinstance(op, ops.At) or (len(op.results) == 1 and is_inlined(op.results[0])):
                continue  # evaluated in its readers
            unfenced = self._visit(op, unfenced)
        return unfenced

    def _visit(self, op: Operation, unfenced: bool) -> bool:
        unfenced |= any(self._reads(part) for part in iterate_evaluated(op))
        if isinstance(op, ops.Branch):
            ends = [self.block(region.block, unfenced) for region in (op.then, op.orelse)]
            return any(ends)
        if isinstance(op, ops.Loop):
            unfenced_at_end = self.block(op.body.block, unfenced)
            if unfenced_at_end and not unfenced:  # the state at the end of the body reaches its start
                unfenced_at_end = self.block(op.body.block, True)
            return unfenced or unfenced_at_end
        if isinstance(op, ops.Perform):
            effects = op.entry.effects
            if effects.fences:
                return False
            if effects.arrives is not None and unfenced:
                self.unfenced_arrivals.add(op)
        return unfenced

    def _reads(self, op: Operation) -> bool:
        return any(
            isinstance(a.array, ops.Shared) and not a.writes and a.access.proxy == "generic" and self.memory.of(a.place) in self.refilled
            for a in iterate_accesses(op)
        )


__all__ = ["find_fenced_arrivals"]
