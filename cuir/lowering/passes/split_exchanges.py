"""Split what warps exchange through shared memory into its steps, between which `insert_synchronisation` lets lanes meet.

Warps give parts of columns, then take them; a warp reads a work item, then returns its slot.
"""

from __future__ import annotations

from ..ir import machine_ops as machine
from ..ir import ops
from ..ir.exchanges import ReleaseSlot, exchange_columns
from ..ir.ir_types import TileT
from ..ir.ir_walk import every
from .rewriting import before, replace

LANES = 32


def run(kernel: ops.Kernel) -> None:
    """Split reductions of columns over warps, and takes of work items."""
    for role in kernel.roles:
        for op in list(every(role)):
            if isinstance(op, ops.ForUnits) and machine.queue_of(op) is not None:
                first = op.body.block.first_op
                assert first is not None
                before(first, release := ReleaseSlot())
                release.location = op.location
            elif isinstance(op, ops.Apply) and op.kind.column_reduction and role.threads.data > LANES:
                _split_reduction(op)


def _split_reduction(op: ops.Apply) -> None:
    source, result = op.arguments[0].type, op.result.type
    assert isinstance(source, TileT) and isinstance(result, TileT)
    if source.shape[0] == 1:
        return
    give, take = exchange_columns(op.op, op.arguments[0], result)
    give.result.name_hint = op.result.name_hint
    before(op, give)
    before(op, take)
    replace(op, [take.result])
