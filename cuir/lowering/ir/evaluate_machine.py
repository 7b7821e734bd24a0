"""Evaluation of machine operations that hold regions or wait; others have a method `evaluate`.

Pure regions are run as often as is convenient: the body of a queue once in a CTA for each work item, a warp's branch
once for all warps that take it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from xdsl.ir import Block, Operation, SSAValue

from ...ops.meaning import Value
from . import ops
from .evaluate_workers import Fault, Frame, PhaseWait, UnitsOfCluster, Waiting
from .machine_ops import HandOut, Queue
from .table_evaluation import Step
from .warp_ops import Pinned, WarpIf

ROWS = 16  # of a warp, out of each 16 rows per warp of the worker


class Compiler(Protocol):
    """A compiler of operations to code (evaluate.py)."""

    def place(self, value: SSAValue) -> int: ...
    def all(self, values: Sequence[SSAValue]) -> tuple[int, ...]: ...
    def block(self, block: Block) -> Step: ...


# ---- work items by a queue
@dataclass(frozen=True)
class UnitsOfQueue:
    """The work items of a cluster as a queue hands them out in a CTA, with their broadcast words.

    `frame`: that of the warp that hands out.
    """

    units: UnitsOfCluster
    frame: Frame
    unit: int
    each: Callable[[Frame], object]
    values: tuple[int, ...]
    cache: dict[int, list[Value]] = field(default_factory=dict)

    def sequence(self) -> Iterator[int]:
        return self.units.sequence()

    def words(self, unit: int) -> list[Value]:
        """Return words 1, 2, ... of the slot of a work item."""
        words = self.cache.get(unit)
        if words is None:
            self.frame[self.unit] = unit
            self.each(self.frame)
            words = self.cache[unit] = [self.frame[v] for v in self.values]
        return words


def _compile_queue(to: Compiler, op: Queue) -> Step:
    units, result, hand_out = to.place(op.units), to.place(op.result), op.hand_out
    preamble, item_body = to.block(op.body.block), to.block(hand_out.body.block)
    unit, values = to.place(hand_out.unit), to.all(hand_out.words)

    def run(r: Frame) -> None:
        frame = list(r)
        preamble.run(frame)
        r[result] = UnitsOfQueue(r[units], frame, unit, item_body.run, values)

    return Step(run)


def make_word_reader(to: Compiler, loop: ops.ForUnits) -> Callable[[Frame, int], None] | None:
    """Return a function that puts the words of a work item into a loop's frame; None if it reads none."""
    if not loop.reads:
        return None
    units = to.place(loop.units)
    words_by_place = [(to.place(place), word.index - 1, word.copies > 1) for word, place in loop.reads]

    def read(r: Frame, unit: int) -> None:
        values, worker = r[units].words(unit), r[0].index
        for place, first, per_worker in words_by_place:
            r[place] = values[first + worker if per_worker else first]

    return read


# ---- warps
def _compile_warp_if(to: Compiler, op: WarpIf) -> Step:
    """Evaluate both sides where warps differ, and select each row of the results by its warp."""
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
    (then, then_values), (orelse, orelse_values) = sides

    def run(r: Frame) -> None:
        rows = r[vote].any(-1)
        warp = torch.arange(len(rows)) // ROWS % warps
        takes = torch.stack([rows[warp == w].any() for w in range(warps)])
        if len(rows) == 1 or bool(takes.all()) or not bool(takes.any()):
            run_side, values = (then, then_values) if bool(takes.any()) else (orelse, orelse_values)
            run_side(r)
            for result, value in zip(results, values, strict=True):
                r[result] = r[value]
            return
        then(r)
        orelse(r)
        for result, x, y in zip(results, then_values, orelse_values, strict=True):
            if isinstance(r[x], torch.Tensor) and r[x].shape[0] == len(rows):
                r[result] = torch.where(takes[warp].unsqueeze(1), r[x], r[y])
            elif isinstance(r[x], torch.Tensor) or r[x] != r[y]:
                raise Fault("warps take different sides of a branch that gives something else than rows")
            else:
                r[result] = r[x]

    return Step(run)


def _compile_pinned(to: Compiler, op: Pinned) -> Step | None:
    if op.condition is None or op.barrier is None or op.parity is None:
        return None
    condition, bar, parity = to.all([op.condition, op.barrier, op.parity])

    def run(r: Frame) -> Waiting:
        if r[condition]:
            wait = PhaseWait(r[bar], r[parity])
            if not wait.over():
                yield wait

    return Step(run, waits=True)


def _compile_nothing(to: Compiler, op: Operation) -> None:
    """Compile an operation that its parent runs: no code."""


CODE: dict[type[Operation], Callable[[Any, Any], Step | None]] = {
    Queue: _compile_queue,
    HandOut: _compile_nothing,
    WarpIf: _compile_warp_if,
    Pinned: _compile_pinned,
}

__all__ = ["CODE", "make_word_reader"]
