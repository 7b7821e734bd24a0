"""What the machine's own operations mean to the evaluator where they hold regions or wait; the others say it themselves (`evaluate`).

Pure regions are run as often as is convenient: the body of a queue once in a CTA for each unit, a warp's branch once for all warps that take it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from xdsl.ir import Block, Operation, SSAValue

from . import ops
from .evaluate_workers import Fault, Frame, PhaseWait, UnitsOfCluster, Waiting
from .machine import HandOut, Queue
from .meaning import Step
from .warps import Pinned, WarpIf

ROWS = 16  # that lie with one warp, of each 16 rows for every warp of a worker


class Compiler(Protocol):
    """What makes code of operations (evaluate.py)."""

    def place(self, value: SSAValue) -> int: ...
    def all(self, values: Sequence[SSAValue]) -> tuple[int, ...]: ...
    def block(self, block: Block) -> Step: ...


# ---- units of work by a queue
@dataclass(frozen=True)
class UnitsOfQueue:
    """The units of a cluster as a queue hands them out in a CTA, with the words that travel. `frame`: of the warp that hands out."""

    units: UnitsOfCluster
    frame: Frame
    unit: int
    each: Callable[[Frame], Any]
    values: tuple[int, ...]
    known: dict[int, list[Any]] = field(default_factory=dict)

    def sequence(self) -> Iterator[int]:
        return self.units.sequence()

    def words(self, unit: int) -> list[Any]:
        """Words 1, 2, ... of the slot of a unit."""
        words = self.known.get(unit)
        if words is None:
            self.frame[self.unit] = unit
            self.each(self.frame)
            words = self.known[unit] = [self.frame[v] for v in self.values]
        return words


def _queue(to: Compiler, op: Queue) -> Step:
    units, result, hand_out = to.place(op.units), to.place(op.result), op.hand_out
    once, each = to.block(op.body.block), to.block(hand_out.body.block)
    unit, values = to.place(hand_out.unit), to.all(hand_out.words)

    def run(r: Frame) -> None:
        frame = list(r)
        once.run(frame)
        r[result] = UnitsOfQueue(r[units], frame, unit, each.run, values)

    return Step(run)


def words_read(to: Compiler, loop: ops.ForUnits) -> Callable[[Frame, int], None] | None:
    """Puts what travels with a unit where a loop's block takes it; None if nothing does."""
    if not loop.reads:
        return None
    units = to.place(loop.units)
    taken = [(to.place(inside), word.index - 1, word.copies > 1) for word, inside in loop.reads]

    def read(r: Frame, unit: int) -> None:
        words, worker = r[units].words(unit), r[0].index
        for inside, first, own in taken:
            r[inside] = words[first + worker if own else first]

    return read


# ---- warps
def _warp_if(to: Compiler, op: WarpIf) -> Step:
    """Both sides where warps differ, and of each row of the results what its warp chose."""
    vote, results = to.place(op.decision), to.all(op.outputs)
    role: Operation | None = op
    while role is not None and not isinstance(role, ops.Role):
        role = role.parent_op()
    assert isinstance(role, ops.Role)
    warps = role.threads.data // 32
    sides = []
    for region in (op.then, op.orelse):
        last = region.block.last_op
        assert isinstance(last, ops.Yield)
        sides.append((to.block(region.block).run, to.all(last.values)))
    (then, chosen), (other, left) = sides

    def run(r: Frame) -> None:
        rows = r[vote].any(-1)
        warp = torch.arange(len(rows)) // ROWS % warps
        takes = torch.stack([rows[warp == w].any() for w in range(warps)])
        if len(rows) == 1 or bool(takes.all()) or not bool(takes.any()):
            run_side, values = (then, chosen) if bool(takes.any()) else (other, left)
            run_side(r)
            for result, value in zip(results, values, strict=True):
                r[result] = r[value]
            return
        then(r)
        other(r)
        for result, x, y in zip(results, chosen, left, strict=True):
            if isinstance(r[x], torch.Tensor) and r[x].shape[0] == len(rows):
                r[result] = torch.where(takes[warp].unsqueeze(1), r[x], r[y])
            elif isinstance(r[x], torch.Tensor) or r[x] != r[y]:
                raise Fault("warps take different sides of a branch that gives something else than rows")
            else:
                r[result] = r[x]

    return Step(run)


def _pinned(to: Compiler, op: Pinned) -> Step | None:
    if op.condition is None or op.barrier is None or op.parity is None:
        return None
    condition, bar, parity = to.all([op.condition, op.barrier, op.parity])

    def run(r: Frame) -> Waiting:
        if r[condition]:
            wait = PhaseWait(r[bar], r[parity])
            if not wait.over():
                yield wait

    return Step(run, waits=True)


def _nothing(to: Compiler, op: Operation) -> None:
    """Of an operation that its parent runs."""


CODE: dict[type[Operation], Callable[[Any, Any], Step | None]] = {Queue: _queue, HandOut: _nothing, WarpIf: _warp_if, Pinned: _pinned}

__all__ = ["CODE", "words_read"]
