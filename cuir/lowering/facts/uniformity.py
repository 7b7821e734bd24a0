"""On what a value depends (uniformity): the launch alone, the CTA, the unit of work, the worker's number, or what the role does as it runs.

A value that follows from no more than the launch is the same in all workers and for all units, so that it can be computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Flag
from functools import reduce
from operator import or_

from xdsl.ir import Block, Operation, SSAValue
from xdsl.traits import Pure

from ..ir import machine, ops, types


class Follows(Flag):
    """What a value follows from, beside the parameters of the launch."""

    LAUNCH = 0  # nothing else
    CTA = 1  # the CTA's number within its cluster
    UNIT = 2  # the unit of work
    WORKER = 4  # the worker's number within its role
    RUN = 8  # what the role does: memory that the kernel writes, barriers, turns of a loop


class Uniformity:
    """What the values of a kernel follow from."""

    def __init__(self, kernel: ops.Kernel):
        self._follows: dict[SSAValue, Follows] = {}
        self._block(kernel.body.block)

    def __getitem__(self, value: SSAValue) -> Follows:
        return self._follows[value]

    def _block(self, block: Block) -> None:
        for op in block.ops:
            self._operation(op)

    def _put(self, values: Sequence[SSAValue], what: Follows) -> None:
        self._follows.update(dict.fromkeys(values, what))

    def _of(self, values: Sequence[SSAValue]) -> Follows:
        return reduce(or_, map(self.__getitem__, values), Follows.LAUNCH)

    def _operation(self, op: Operation) -> None:
        if isinstance(op, ops.Apply):
            self._put(op.results, Follows.CTA if op.kind.rank else self._of(op.arguments))
        elif isinstance(op, ops.Role):
            self._put(op.body.block.args, Follows.WORKER if op.workers.data > 1 else Follows.LAUNCH)
            self._block(op.body.block)
        elif isinstance(op, machine.Queue):
            self._block(op.body.block)
            self._put(op.results, Follows.LAUNCH)
        elif isinstance(op, machine.HandOut):
            self._put([op.unit], Follows.UNIT)
            self._block(op.body.block)
        elif isinstance(op, ops.Loop):
            self._put([op.turn], Follows.UNIT if isinstance(op, ops.ForUnits) else Follows.RUN)
            if isinstance(op, ops.ForUnits):
                self._words(op)
            self._put([*op.inner, *op.outputs], Follows.RUN)
            self._block(op.body.block)
        elif isinstance(op, ops.Branch):
            self._block(op.then.block)
            self._block(op.orelse.block)
            for result, *given in zip(
                op.outputs, *(b.last_op.operands for b in (op.then.block, op.orelse.block) if b.last_op), strict=True
            ):
                self._put([result], self._of([op.decision, *given]))
        elif isinstance(op, ops.Perform):
            self._put(op.outputs, self._of(op.arguments) if reads_constant(op) else Follows.RUN)
        elif isinstance(op, (ops.Constant, ops.At, ops.Declaration)) or op.has_trait(Pure):
            self._put(op.results, self._of(op.operands))
        else:
            for region in op.regions:
                self._put(region.block.args, Follows.RUN)
                self._block(region.block)
            self._put(op.results, Follows.RUN)

    def _words(self, loop: ops.ForUnits) -> None:
        queue = machine.queue_of(loop)
        for word, inside in loop.reads:
            assert queue is not None
            of_worker = Follows.WORKER if word.copies > 1 else Follows.LAUNCH
            self._put([inside], self._of(queue.hand_out.words[word.index - 1 : word.index - 1 + word.copies]) | of_worker)


def uniformity(kernel: ops.Kernel) -> Uniformity:
    return Uniformity(kernel)


def reads_constant(op: ops.Perform) -> bool:
    """Whether an operation does nothing but read a tensor that the kernel never writes: it is as good as a value."""
    effects = op.entry.effects
    if (
        not effects.accesses
        or any(a.mode != "read" or a.late for a in effects.accesses)
        or effects.arrives
        or effects.waits
        or effects.drains
    ):
        return False
    return all(_never_written(op.arg(a.arg)) for a in effects.accesses)


def _never_written(place: SSAValue) -> bool:
    while isinstance(place.owner, ops.At):
        place = place.owner.array
    return isinstance(place.owner, ops.Tensor) and place.owner.written is None and isinstance(place.type, types.TensorT)


__all__ = ["Follows", "Uniformity", "reads_constant", "uniformity"]
