"""Origins and uses of values, through control flow and through arithmetic.

Control flow: values that loops carry, that branches yield, that come with work items, and tiles that pass through a
wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeGuard

from xdsl.ir import BlockArgument, SSAValue, Use

from ..ir import machine_ops as machine
from ..ir import ops
from ..ir.ir_walk import last
from ..ir.machine_tiles import After, Pin


def is_tile_wait(op: object) -> TypeGuard[ops.Perform]:
    """Return whether an operation is a wait that tiles pass through."""
    return isinstance(op, ops.Perform) and op.entry.effects.drains is not None and bool(op.outputs)


def find_sources(value: SSAValue) -> list[SSAValue] | None:
    """Return the values that may flow into this one; None if an operation computes it.

    For a value that a loop carries, the initial one comes first; others are those that a branch yields, and the words
    of a queue that come with a work item.
    """
    if isinstance(value.owner, ops.Apply):  # most are
        return None
    if isinstance(value, BlockArgument):
        loop = value.block.parent_op()
        if not isinstance(loop, ops.Loop):
            return None
        if isinstance(loop, ops.ForUnits) and (queue := machine.queue_of(loop)) is not None:
            for word, argument in loop.reads:
                if argument is value:
                    return list(queue.hand_out.words[word.index - 1 : word.index - 1 + word.copies])
        if value not in loop.inner:
            return None
        i = loop.inner.index(value)
        return [loop.carried[i], last(loop.body).values[i]]
    op, i = value.owner, value.index  # type: ignore[attr-defined]
    if isinstance(op, ops.Loop):
        return [op.carried[i], last(op.body).values[i]]
    if isinstance(op, ops.Branch):
        return [last(op.then).values[i], last(op.orelse).values[i]]
    if is_tile_wait(op):
        return [op.arguments[i]]
    return [op.operands[0]] if isinstance(op, (Pin, After)) else None


def find_deciders(value: SSAValue) -> Sequence[SSAValue]:
    """Return the values that decide which of its sources a value has: a branch's decision, a loop's bounds."""
    op = value.block.parent_op() if isinstance(value, BlockArgument) else value.owner
    if isinstance(op, ops.For):
        return op.start, op.stop
    return (op.decision,) if isinstance(op, ops.Branch) else ()


def find_targets(use: Use) -> list[SSAValue]:
    """Return the values that receive a value unchanged through this use; none if the use reads it."""
    op, i = use.operation, use.index
    if isinstance(op, ops.Loop):
        i -= len(op.operands) - len(op.carried)
        return [] if i < 0 else [op.inner[i], op.results[i]]
    if isinstance(op, ops.Yield):
        parent = op.parent_op()
        if isinstance(parent, ops.Loop):
            return [parent.inner[i], parent.results[i]]
        return [parent.results[i]] if isinstance(parent, ops.Branch) else []
    if is_tile_wait(op):
        return [op.outputs[i]]
    return [op.result] if isinstance(op, (Pin, After)) and i == 0 else []


def walk_expression(value: SSAValue, ends: Callable[[SSAValue], bool] = lambda _: False) -> Iterator[SSAValue]:
    """Yield a value and all that it is computed from by pure operations, each once.

    Args:
        value: The root of the expression.
        ends: Predicate of values whose operands are left out.
    """
    worklist, visited = [value], {value}
    while worklist:
        value = worklist.pop()
        yield value
        if isinstance(value.owner, ops.Apply) and not ends(value):
            new = [a for a in reversed(value.owner.arguments) if a not in visited]
            visited.update(new)
            worklist += dict.fromkeys(new)


__all__ = ["find_deciders", "find_sources", "find_targets", "is_tile_wait", "walk_expression"]
