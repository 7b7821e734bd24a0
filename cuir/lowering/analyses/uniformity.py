"""Uniformity of values: dependence on the launch, CTA, work item, worker, or run of a role.

A value that depends on no more than the launch is the same in all workers and for all work items, so that it can be
computed once.

Roles that run on one lane of their warp, since one lane can do all their operations for the worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Flag
from functools import partial
from operator import or_

from xdsl.ir import Block, Operation, SSAValue

from ...checking.fact_solver import Rule, ValueFlow
from ...ops.limits import TARGETS
from ..ir import machine_ops as machine
from ..ir import ops
from ..ir.exchanges import ReleaseSlot
from ..ir.ir_types import is_tile
from ..ir.ir_walk import every, last
from ..ir.operand_access import Function
from ..ir.synchronisation import Synchronisation
from .memory import is_memory_effect_free


class Uniformity(Flag):
    """The inputs, besides the parameters of the launch, on which a value depends."""

    LAUNCH = 0  # parameters alone
    CTA = 1  # the CTA's rank within its cluster
    WORK_ITEM = 2  # the index of the work item
    WORKER = 4  # the worker's index within its role
    VARYING = 8  # the run of the role: memory that the kernel writes, barriers, turns of a loop


Step = tuple[Rule[Uniformity], Sequence[SSAValue]]


def compute_uniformity(values: Iterable[SSAValue]) -> Mapping[SSAValue, Uniformity]:
    """Compute the uniformity of values and of all that they are computed from."""
    flow = ValueFlow[SSAValue, Uniformity](or_)
    flow.reach(values, _describe)
    return flow.solve()


def analyse_uniformity(kernel: ops.Kernel) -> Mapping[SSAValue, Uniformity]:
    """Compute the uniformity of a kernel's values."""
    return compute_uniformity(v for op in every(kernel) for v in (*op.results, *(a for r in op.regions for a in r.block.args)))


def is_uniform_in_worker(value: SSAValue) -> bool:
    """Return whether a value stays the same in a worker, for all work items and turns of loops."""
    return not compute_uniformity([value])[value] & (Uniformity.WORK_ITEM | Uniformity.VARYING)


def _describe(value: SSAValue) -> Step:
    """Return how the uniformity of a value follows from those of others."""
    op = value.owner
    if isinstance(op, Block):
        return _describe_argument(value, op.parent_op())
    if isinstance(op, ops.Apply):
        return _depends(Uniformity.CTA) if op.kind.rank else _depends(Uniformity.LAUNCH, op.arguments)
    if isinstance(op, ops.Branch):
        i = op.results.index(value)
        return _depends(Uniformity.LAUNCH, [op.decision, last(op.then).values[i], last(op.orelse).values[i]])
    if isinstance(op, ops.Declaration) or (not op.regions and is_memory_effect_free(op)):
        return _depends(Uniformity.LAUNCH, op.operands)
    return _depends(Uniformity.LAUNCH if isinstance(op, machine.Queue) else Uniformity.VARYING)


def _describe_argument(value: SSAValue, op: Operation | None) -> Step:
    """Return how the uniformity of a block's argument follows from those of others."""
    if isinstance(op, ops.Role):
        return _depends(Uniformity.WORKER if op.workers.data > 1 else Uniformity.LAUNCH)
    if isinstance(op, machine.HandOut) or (isinstance(op, ops.ForUnits) and value is op.turn):
        return _depends(Uniformity.WORK_ITEM)
    if isinstance(op, ops.ForUnits) and (queue := machine.queue_of(op)) is not None:
        for word, argument in op.reads:
            if argument is value:
                of_worker = Uniformity.WORKER if word.copies > 1 else Uniformity.LAUNCH
                return _depends(of_worker, queue.hand_out.words[word.index - 1 : word.index - 1 + word.copies])
    return _depends(Uniformity.VARYING)


def _depends(uniformity: Uniformity, sources: Sequence[SSAValue] = ()) -> Step:
    """Return the step of a value that depends on inputs, and on all that its sources depend on."""
    return partial(_join_sources, uniformity), sources


def _join_sources(uniformity: Uniformity, inputs: Sequence[Uniformity | None]) -> Uniformity | None:
    for dependence in inputs:
        if dependence is None:
            return None
        uniformity |= dependence
    return uniformity


def runs_on_one_lane(role: ops.Role) -> bool:
    """Return whether a role runs on one lane of its warp; only on targets that are asynchronous enough."""
    kernel = role.parent_op()
    assert isinstance(kernel, ops.Kernel)
    return role.threads.data == 32 and TARGETS[kernel.arch.data].has("one_lane_roles") and all(map(_is_single_lane, every(role)))


def _is_single_lane(op: Operation) -> bool:
    if any(map(is_tile, op.results)) or any(is_tile(a) for region in op.regions for block in region.blocks for a in block.args):
        return False
    if isinstance(op, (ops.Apply, ops.Perform)):
        return op.entry.traits.one_lane
    structural = (ops.Constant, ops.At, ops.Yield, ops.For, ops.ForUnits, ops.If, ReleaseSlot, Synchronisation)
    return isinstance(op, structural) or (isinstance(op, Function) and op.ONE_LANE)


__all__ = ["Uniformity", "analyse_uniformity", "compute_uniformity", "is_uniform_in_worker", "runs_on_one_lane"]
