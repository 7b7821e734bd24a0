"""Uniformity of values: dependence on the launch, CTA, work item, worker, or run of a role.

A value that depends on no more than the launch is the same in all workers and for all work items, so that it can be
computed once.

Roles that run on one lane of their warp, since one lane can do all their operations for the worker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Flag
from functools import partial
from operator import or_

from xdsl.ir import Block, Operation, SSAValue

from ...ops.limits import TARGETS
from ..ir import machine_ops as machine
from ..ir import ops
from ..ir.ir_types import is_tile
from ..ir.ir_walk import every, last
from ..ir.operand_access import Function
from ..ir.synchronisation import Synchronisation
from .fixed_point import ValueFlow
from .memory import is_memory_effect_free


class Uniformity(Flag):
    """The inputs, besides the parameters of the launch, on which a value depends."""

    LAUNCH = 0  # parameters alone
    CTA = 1  # the CTA's rank within its cluster
    WORK_ITEM = 2  # the index of the work item
    WORKER = 4  # the worker's index within its role
    VARYING = 8  # the run of the role: memory that the kernel writes, barriers, turns of a loop


class _Flow(ValueFlow[Uniformity]):
    """The steps of a kernel's values; a value depends on what its sources depend on."""

    def __init__(self, kernel: ops.Kernel):
        super().__init__(or_)
        self.block(kernel.body.block)

    def block(self, block: Block) -> None:
        for op in block.ops:
            self.visit(op)

    def put_all(self, values: Sequence[SSAValue], uniformity: Uniformity, sources: Sequence[SSAValue] = ()) -> None:
        """Add the steps of values that depend on inputs, and on all that the sources depend on."""
        for value in values:
            self.put(value, partial(_join_sources, uniformity), sources)

    def visit(self, op: Operation) -> None:
        """Add the steps of an operation's results and of its regions."""
        if isinstance(op, ops.Apply):
            self.put_all(op.results, *((Uniformity.CTA,) if op.kind.rank else (Uniformity.LAUNCH, op.arguments)))
        elif isinstance(op, ops.Role):
            self.put_all(op.body.block.args, Uniformity.WORKER if op.workers.data > 1 else Uniformity.LAUNCH)
            self.block(op.body.block)
        elif isinstance(op, machine.Queue):
            self.block(op.body.block)
            self.put_all(op.results, Uniformity.LAUNCH)
        elif isinstance(op, machine.HandOut):
            self.put_all([op.unit], Uniformity.WORK_ITEM)
            self.block(op.body.block)
        elif isinstance(op, ops.Loop):
            self.put_all([op.turn], Uniformity.WORK_ITEM if isinstance(op, ops.ForUnits) else Uniformity.VARYING)
            if isinstance(op, ops.ForUnits):
                self.put_words(op)
            self.put_all([*op.inner, *op.outputs], Uniformity.VARYING)
            self.block(op.body.block)
        elif isinstance(op, ops.Branch):
            self.block(op.then.block)
            self.block(op.orelse.block)
            for result, *inputs in zip(op.outputs, last(op.then).values, last(op.orelse).values, strict=True):
                self.put_all([result], Uniformity.LAUNCH, [op.decision, *inputs])
        elif isinstance(op, ops.Declaration) or is_memory_effect_free(op):
            self.put_all(op.results, Uniformity.LAUNCH, op.operands)
        else:
            for region in op.regions:
                self.put_all(region.block.args, Uniformity.VARYING)
                self.block(region.block)
            self.put_all(op.results, Uniformity.VARYING)

    def put_words(self, loop: ops.ForUnits) -> None:
        """Add the steps of the words that come with a work item."""
        queue = machine.queue_of(loop)
        for word, argument in loop.reads:
            assert queue is not None
            of_worker = Uniformity.WORKER if word.copies > 1 else Uniformity.LAUNCH
            self.put_all([argument], of_worker, queue.hand_out.words[word.index - 1 : word.index - 1 + word.copies])


def _join_sources(uniformity: Uniformity, inputs: Sequence[Uniformity | None]) -> Uniformity | None:
    for dependence in inputs:
        if dependence is None:
            return None
        uniformity |= dependence
    return uniformity


def analyse_uniformity(kernel: ops.Kernel) -> Mapping[SSAValue, Uniformity]:
    """Compute the uniformity of a kernel's values."""
    return _Flow(kernel).solve()


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
    return isinstance(op, (ops.Constant, ops.At, ops.Yield, ops.For, ops.ForUnits, ops.If, Synchronisation)) or (
        isinstance(op, Function) and op.ONE_LANE
    )


__all__ = ["Uniformity", "analyse_uniformity", "runs_on_one_lane"]
