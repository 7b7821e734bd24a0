"""Remove operations without an effect whose results are unread.

Values that a loop carries or a branch yields for nothing go, too.
"""

from __future__ import annotations

from xdsl.ir import Block, BlockArgument, Operation, SSAValue

from ..analyses.memory import find_memory_effect
from ..ir import machine_ops as machine
from ..ir import ops
from ..ir.ir_walk import every, last, operations
from .rewriting import before, extend_branch, uncarry


def run(kernel: ops.Kernel) -> None:
    """Find live values from the effects backwards, and remove the rest."""
    live = _Live(kernel)
    _sweep(kernel.body.block, live)


def is_removable(op: Operation) -> bool:
    """Return whether an operation has no effect but reading memory, so that it goes if its results are unread."""
    return not op.regions and bool(op.results) and find_memory_effect(op) != "write"


def is_product_wait(op: Operation) -> bool:
    """Return whether an operation is a wait for products, which needs only the tiles read after it."""
    return isinstance(op, ops.Perform) and op.entry.effects.drains is not None and len(op.results) == len(op.arguments) > 0


class _Live:
    """The live values, found from the effects backwards."""

    def __init__(self, kernel: ops.Kernel):
        self.values: set[SSAValue] = set()
        self.worklist: list[SSAValue] = []
        for op in every(kernel):
            if isinstance(op, ops.Apply):
                continue  # the common case: readers of its result need its operands
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
            elif is_product_wait(op):
                continue
            elif not is_removable(op) and not isinstance(op, ops.Yield):
                for operand in op.operands:
                    self.need(operand)
        while self.worklist:
            self._follow(self.worklist.pop())

    def need(self, value: SSAValue) -> None:
        if value not in self.values:
            self.values.add(value)
            self.worklist.append(value)

    def _follow(self, value: SSAValue) -> None:
        owner = value.owner
        if isinstance(owner, ops.Apply):  # most are
            for operand in owner.arguments:
                self.need(operand)
        elif isinstance(value, BlockArgument):
            loop = value.block.parent_op()
            if isinstance(loop, ops.Loop) and value in loop.inner:
                self._need_carried(loop, loop.inner.index(value))
        elif isinstance(owner, ops.Branch):
            for region in (owner.then, owner.orelse):
                self.need(last(region).values[value.index])  # type: ignore[attr-defined]
        elif isinstance(owner, ops.Loop):
            self._need_carried(owner, value.index)  # type: ignore[attr-defined]
        elif isinstance(owner, Operation) and is_product_wait(owner):
            self.need(owner.operands[value.index])  # type: ignore[attr-defined]
        else:
            assert isinstance(owner, Operation)
            for operand in owner.operands:
                self.need(operand)

    def _need_carried(self, loop: ops.Loop, i: int) -> None:
        self.need(loop.carried[i])
        self.need(last(loop.body).values[i])
        self.need(loop.inner[i])


def _sweep(block: Block, live: _Live) -> None:
    for op in reversed(operations(block)):
        if not op.regions and any(r in live.values for r in op.results) and not is_product_wait(op):
            continue  # most are needed
        if isinstance(op, ops.Branch):
            live_indices = [i for i, r in enumerate(op.results) if r in live.values]
            if len(live_indices) < len(op.results):
                op, _ = extend_branch(op, [], live_indices)
        elif isinstance(op, ops.Loop):
            live_indices = [i for i, r in enumerate(op.results) if r in live.values or op.inner[i] in live.values]
            if len(live_indices) < len(op.results):
                _drop_uses(op, live_indices)
                op = uncarry(op, live_indices)
        elif isinstance(op, ops.Perform) and is_product_wait(op):
            _keep_tiles(op, [i for i, r in enumerate(op.results) if r in live.values])
            continue
        elif is_removable(op) and not any(r in live.values for r in op.results):
            op.detach()
            op.erase(safe_erase=False)
            continue
        for region in op.regions:
            _sweep(region.block, live)
        if isinstance(op, (ops.Branch, ops.For)) and not op.results and all(_is_empty(r.block) for r in op.regions):
            op.detach()
            op.erase()


def _keep_tiles(wait: ops.Perform, indices: list[int]) -> None:
    """Rebuild a wait for these of its tiles; it waits as long."""
    if len(indices) == len(wait.results):
        return
    args = list(wait.args.items())
    new_wait = ops.perform(
        wait.op, dict(args[i] for i in indices), [args[i][1].type for i in indices], {k: wait.const(k) for k in wait.consts.data}
    )
    before(wait, new_wait)
    for i, result in zip(indices, new_wait.results, strict=True):
        result.name_hint = wait.results[i].name_hint
        wait.results[i].replace_all_uses_with(result)
    wait.detach()
    wait.erase(safe_erase=False)


def _is_empty(block: Block) -> bool:
    return len(block.ops) == 1


def _drop_uses(loop: ops.Loop, indices: list[int]) -> None:
    """Detach readers of dropped values from the loop.

    They are dead, too, and go with the body's sweep, which needs these operands gone first.
    """
    for i, (argument, start) in enumerate(zip(loop.inner, loop.carried, strict=True)):
        if i not in indices:
            argument.replace_all_uses_with(start)  # the readers are dead; any value of this type will do until they go
