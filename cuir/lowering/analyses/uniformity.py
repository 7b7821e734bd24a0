"""Uniformity of values: dependence on the launch, CTA, work item, worker, or run of a role.

A value that depends on no more than the launch is the same in all workers and for all work items, so that it can be
computed once.

Roles that run on one lane of their warp, since one lane can do all their operations for the worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Flag
from functools import reduce
from operator import or_

from xdsl.ir import Block, Operation, SSAValue
from xdsl.traits import Pure

from ...ops.limits import TARGETS
from ..ir import ir_types as types
from ..ir import machine_ops as machine
from ..ir import ops
from ..ir.ir_types import is_tile
from ..ir.ir_walk import every
from ..ir.operand_access import Function


class Uniformity(Flag):
    """The inputs, besides the parameters of the launch, on which a value depends."""

    LAUNCH = 0  # parameters alone
    CTA = 1  # the CTA's rank within its cluster
    WORK_ITEM = 2  # the index of the work item
    WORKER = 4  # the worker's index within its role
    VARYING = 8  # the run of the role: memory that the kernel writes, barriers, turns of a loop


class UniformityAnalysis:
    """The uniformity of a kernel's values."""

    def __init__(self, kernel: ops.Kernel):
        self._uniformity: dict[SSAValue, Uniformity] = {}
        self._block(kernel.body.block)

    def __getitem__(self, value: SSAValue) -> Uniformity:
        return self._uniformity[value]

    def _block(self, block: Block) -> None:
        for op in block.ops:
            self._visit(op)

    def _put(self, values: Sequence[SSAValue], uniformity: Uniformity) -> None:
        self._uniformity.update(dict.fromkeys(values, uniformity))

    def _join(self, values: Sequence[SSAValue]) -> Uniformity:
        return reduce(or_, map(self.__getitem__, values), Uniformity.LAUNCH)

    def _visit(self, op: Operation) -> None:
        if isinstance(op, ops.Apply):
            self._put(op.results, Uniformity.CTA if op.kind.rank else self._join(op.arguments))
        elif isinstance(op, ops.Role):
            self._put(op.body.block.args, Uniformity.WORKER if op.workers.data > 1 else Uniformity.LAUNCH)
            self._block(op.body.block)
        elif isinstance(op, machine.Queue):
            self._block(op.body.block)
            self._put(op.results, Uniformity.LAUNCH)
        elif isinstance(op, machine.HandOut):
            self._put([op.unit], Uniformity.WORK_ITEM)
            self._block(op.body.block)
        elif isinstance(op, ops.Loop):
            self._put([op.turn], Uniformity.WORK_ITEM if isinstance(op, ops.ForUnits) else Uniformity.VARYING)
            if isinstance(op, ops.ForUnits):
                self._put_words(op)
            self._put([*op.inner, *op.outputs], Uniformity.VARYING)
            self._block(op.body.block)
        elif isinstance(op, ops.Branch):
            self._block(op.then.block)
            self._block(op.orelse.block)
            for result, *inputs in zip(
                op.outputs, *(b.last_op.operands for b in (op.then.block, op.orelse.block) if b.last_op), strict=True
            ):
                self._put([result], self._join([op.decision, *inputs]))
        elif isinstance(op, ops.Perform):
            self._put(op.outputs, self._join(op.arguments) if reads_constant(op) else Uniformity.VARYING)
        elif isinstance(op, (ops.Constant, ops.At, ops.Declaration)) or op.has_trait(Pure):
            self._put(op.results, self._join(op.operands))
        else:
            for region in op.regions:
                self._put(region.block.args, Uniformity.VARYING)
                self._block(region.block)
            self._put(op.results, Uniformity.VARYING)

    def _put_words(self, loop: ops.ForUnits) -> None:
        queue = machine.queue_of(loop)
        for word, argument in loop.reads:
            assert queue is not None
            of_worker = Uniformity.WORKER if word.copies > 1 else Uniformity.LAUNCH
            self._put([argument], self._join(queue.hand_out.words[word.index - 1 : word.index - 1 + word.copies]) | of_worker)


def analyse_uniformity(kernel: ops.Kernel) -> UniformityAnalysis:
    """Analyse a kernel."""
    return UniformityAnalysis(kernel)


def reads_constant(op: ops.Perform) -> bool:
    """Return whether an operation only reads a tensor that the kernel never writes, which is speculatable."""
    effects = op.entry.effects
    if (
        not effects.accesses
        or any(a.mode != "read" or a.late for a in effects.accesses)
        or effects.arrives
        or effects.waits
        or effects.drains
    ):
        return False
    return all(_is_never_written(op.arg(a.arg)) for a in effects.accesses)


def _is_never_written(place: SSAValue) -> bool:
    while isinstance(place.owner, ops.At):
        place = place.owner.array
    return isinstance(place.owner, ops.Tensor) and place.owner.written is None and isinstance(place.type, types.TensorT)


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
    return isinstance(op, (ops.Constant, ops.At, ops.Yield, ops.For, ops.ForUnits, ops.If)) or (isinstance(op, Function) and op.ONE_LANE)


__all__ = ["Uniformity", "UniformityAnalysis", "analyse_uniformity", "reads_constant", "runs_on_one_lane"]
