"""Removes what nobody needs: operations without an effect whose results are not read, and values that loops and branches carry for nothing."""

from __future__ import annotations

from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from ..ir import machine, ops
from ..ir.walk import every, last, operations
from .rewriting import before, give, uncarry


def run(kernel: ops.Kernel) -> None:
    live = _Live(kernel)
    _sweep(kernel.body.block, live)


def removable(op: Operation) -> bool:
    """Whether an operation only gives its results: no effect but reading memory."""
    if isinstance(op, ops.Perform):
        e = op.entry.effects
        reads = all(a.mode == "read" and not a.late for a in e.accesses)
        return reads and bool(op.results) and not (e.arrives or e.waits or e.drains or e.commits or e.group or e.fences or e.joins)
    return not op.regions and bool(op.results)


def finishes(op: Operation) -> bool:
    """Whether an operation is a wait for products, which needs only those tiles that somebody reads behind it."""
    return isinstance(op, ops.Perform) and op.entry.effects.drains is not None and len(op.results) == len(op.arguments) > 0


class _Live:
    """The values that are needed, found from the effects backwards."""

    def __init__(self, kernel: ops.Kernel):
        self.values: set[SSAValue] = set()
        self.left: list[SSAValue] = []
        for op in every(kernel):
            if isinstance(op, ops.Apply):
                continue  # most are; who reads its result needs its operands
            if isinstance(op, ops.For):
                self.need(op.start)
                self.need(op.stop)
            elif isinstance(op, ops.ForUnits):
                self.need(op.units)
            elif isinstance(op, ops.Branch):
                self.need(op.decision)
            elif isinstance(op, machine.HandOut):
                for word in op.words:
                    self.need(word)
            elif finishes(op):
                continue
            elif (not removable(op) and not isinstance(op, ops.Yield)) or (isinstance(op, ops.Declaration)):
                for operand in op.operands:
                    self.need(operand)
        while self.left:
            self._follow(self.left.pop())

    def need(self, value: SSAValue) -> None:
        if value not in self.values:
            self.values.add(value)
            self.left.append(value)

    def _follow(self, value: SSAValue) -> None:
        owner = value.owner
        if isinstance(owner, ops.Apply):  # most are
            for operand in owner.arguments:
                self.need(operand)
        elif isinstance(value, BlockArgument):
            loop = value.block.parent_op()
            if isinstance(loop, ops.Loop) and value in loop.inner:
                self._carried(loop, loop.inner.index(value))
        elif isinstance(owner, ops.Branch):
            for region in (owner.then, owner.orelse):
                self.need(last(region).values[value.index])  # type: ignore[attr-defined]
        elif isinstance(owner, ops.Loop):
            self._carried(owner, value.index)  # type: ignore[attr-defined]
        elif isinstance(owner, Operation) and finishes(owner):
            self.need(owner.operands[value.index])  # type: ignore[attr-defined]
        else:
            assert isinstance(owner, Operation)
            for operand in owner.operands:
                self.need(operand)

    def _carried(self, loop: ops.Loop, i: int) -> None:
        self.need(loop.carried[i])
        self.need(last(loop.body).values[i])
        self.need(loop.inner[i])


def _sweep(block: Block, live: _Live) -> None:
    for op in reversed(operations(block)):
        if not op.regions and any(r in live.values for r in op.results) and not finishes(op):
            continue  # most are needed
        if isinstance(op, ops.Branch):
            kept = [i for i, r in enumerate(op.results) if r in live.values]
            if len(kept) < len(op.results):
                op, _ = give(op, [], kept)
        elif isinstance(op, ops.Loop):
            kept = [i for i, r in enumerate(op.results) if r in live.values or op.inner[i] in live.values]
            if len(kept) < len(op.results):
                _drop_uses(op, kept)
                op = uncarry(op, kept)
        elif isinstance(op, ops.Perform) and finishes(op):
            _keep(op, [i for i, r in enumerate(op.results) if r in live.values])
            continue
        elif removable(op) and not isinstance(op, ops.Declaration) and not any(r in live.values for r in op.results):
            op.detach()
            op.erase(safe_erase=False)
            continue
        for region in op.regions:
            _sweep(region.block, live)
        if isinstance(op, (ops.Branch, ops.For)) and not op.results and all(_empty(r.block) for r in op.regions):
            op.detach()
            op.erase()


def _keep(wait: ops.Perform, kept: list[int]) -> None:
    """The wait for these of its tiles; it waits as long."""
    if len(kept) == len(wait.results):
        return
    args = list(wait.args.items())
    made = ops.perform(wait.op, dict(args[i] for i in kept), [args[i][1].type for i in kept], {k: wait.const(k) for k in wait.consts.data})
    before(wait, made)
    for i, result in zip(kept, made.results, strict=True):
        result.name_hint = wait.results[i].name_hint
        wait.results[i].replace_all_uses_with(result)
    wait.detach()
    wait.erase(safe_erase=False)


def _empty(block: Block) -> bool:
    return len(block.ops) == 1


def _drop_uses(loop: ops.Loop, kept: list[int]) -> None:
    """What reads a value that goes is dead, too: it goes with the body's sweep, which needs the operations gone first."""
    for i, (argument, start) in enumerate(zip(loop.inner, loop.carried, strict=True)):
        if i not in kept:
            argument.replace_all_uses_with(start)  # the readers are dead; any value of this type will do until they go
