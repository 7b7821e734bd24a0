"""Rewriting of IR beyond the exchange of operands: moving operations, rebuilding loops and branches."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Block, Operation, Region, SSAValue

from ..ir import ops
from ..ir.ir_walk import last, operations


def before(op: Operation, new: Operation) -> SSAValue | None:
    """Insert an operation before another one, with its location, and return its first result."""
    assert op.parent is not None
    new.location = op.location
    op.parent.insert_op_before(new, op)
    return new.results[0] if new.results else None


def insert(op: Operation, new: Operation) -> SSAValue:
    """Insert an operation with a result before another one, as `before` does."""
    result = before(op, new)
    assert result is not None
    return result


def replace(op: Operation, values: Sequence[SSAValue]) -> None:
    """Remove an operation and replace its results by these values."""
    for old, new in zip(op.results, values, strict=True):
        hint = new.name_hint or old.name_hint
        old.replace_all_uses_with(new)
        if new.name_hint is None:
            new.name_hint = hint
    op.detach()
    op.erase()


def set_yield(region: Region, values: Sequence[SSAValue]) -> None:
    """Replace the values that a region yields."""
    old = last(region)
    new = ops.end(values)
    new.location = old.location
    region.block.insert_op_before(new, old)
    old.detach()
    old.erase()


def move_body(region: Region) -> Region:
    """Move the contents of a region to a new region without parent."""
    new = Region()
    block = region.block
    region.detach_block(block)
    new.add_block(block)
    return new


def carry(loop: ops.Loop, starts: Sequence[SSAValue]) -> tuple[ops.Loop, list[SSAValue]]:
    """Rebuild a loop that carries further values, and return it with the arguments of its block.

    It yields the new values as it gets them until `set_yield` replaces that.
    """
    block, old = loop.body.block, last(loop.body)
    arguments = [block.insert_arg(v.type, len(block.args)) for v in starts]
    for argument, start in zip(arguments, starts, strict=True):
        argument.name_hint = start.name_hint
    set_yield(loop.body, [*old.values, *arguments])
    return _rebuild_loop(loop, [*loop.carried, *starts]), list(arguments)


def uncarry(loop: ops.Loop, indices: Sequence[int]) -> ops.Loop:
    """Rebuild a loop that carries these of its values alone; the others must be dead."""
    block = loop.body.block
    values = list(last(loop.body).values)
    set_yield(loop.body, [values[i] for i in indices])
    carried = list(loop.carried)
    first = len(block.args) - len(carried)
    for i in reversed(range(len(carried))):
        if i not in indices:
            block.erase_arg(block.args[first + i])
    return _rebuild_loop(loop, [carried[i] for i in indices], indices)


def _rebuild_loop(loop: ops.Loop, carried: Sequence[SSAValue], indices: Sequence[int] | None = None) -> ops.Loop:
    words = [word for word, _ in loop.reads] if isinstance(loop, ops.ForUnits) else []
    body = move_body(loop.body)
    new: ops.Loop
    if isinstance(loop, ops.For):
        new = ops.loop(loop.start, loop.stop, loop.step.data, carried, body)
    else:
        assert isinstance(loop, ops.ForUnits)
        new = ops.loop_over_units(loop.units, carried, body, words)
    before(loop, new)
    old = list(loop.results)
    for i, result in enumerate(new.results):
        old_index = (indices[i] if indices is not None else i) if indices is not None or i < len(old) else None
        if old_index is not None:
            result.name_hint = old[old_index].name_hint
            old[old_index].replace_all_uses_with(result)
    loop.detach()
    loop.erase()
    return new


def extend_branch(
    branch: ops.Branch, values: Sequence[tuple[SSAValue, SSAValue]], indices: Sequence[int] | None = None
) -> tuple[ops.Branch, list[SSAValue]]:
    """Rebuild a branch with further results, and return it with these.

    Args:
        branch: The branch.
        values: Pairs of values that its regions yield in addition.
        indices: Results to keep; None keeps all.
    """
    keep = list(range(len(branch.results))) if indices is None else list(indices)
    for k, region in enumerate((branch.then, branch.orelse)):
        old_values = last(region).values
        set_yield(region, [*(old_values[i] for i in keep), *(pair[k] for pair in values)])
    new = branch.from_regions(branch.decision, move_body(branch.then), move_body(branch.orelse))
    before(branch, new)
    for i, result in zip(keep, new.results, strict=False):
        result.name_hint = branch.results[i].name_hint
        branch.results[i].replace_all_uses_with(result)
    for result, pair in zip(new.results[len(keep) :], values, strict=True):
        result.name_hint = pair[0].name_hint
    branch.detach()
    branch.erase()
    return new, list(new.results[len(keep) :])


def inline(block: Block, op: Operation) -> Sequence[SSAValue]:
    """Move a block without arguments before an operation, and return the values that it yielded."""
    end = block.last_op
    assert isinstance(end, ops.Yield)
    values = list(end.values)
    end.detach()
    end.erase()
    for inner in operations(block):
        inner.detach()
        assert op.parent is not None
        op.parent.insert_op_before(inner, op)
    return values
