"""What passes do to the IR besides exchanging operands: putting operations elsewhere, changing what loops and branches carry."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Block, Operation, Region, SSAValue

from ..ir import ops
from ..ir.walk import last, operations


def before(op: Operation, new: Operation) -> SSAValue | None:
    """Puts an operation before another one, with its location; gives its first result."""
    assert op.parent is not None
    new.location = op.location
    op.parent.insert_op_before(new, op)
    return new.results[0] if new.results else None


def insert(op: Operation, new: Operation) -> SSAValue:
    """As `before`, of an operation with a result."""
    result = before(op, new)
    assert result is not None
    return result


def replace(op: Operation, values: Sequence[SSAValue]) -> None:
    """Removes an operation whose results are these values from now on."""
    for old, new in zip(op.results, values, strict=True):
        hint = new.name_hint or old.name_hint
        old.replace_all_uses_with(new)
        if new.name_hint is None:
            new.name_hint = hint
    op.detach()
    op.erase()


def set_yield(region: Region, values: Sequence[SSAValue]) -> None:
    """Has a region yield these values."""
    old = last(region)
    new = ops.end(values)
    new.location = old.location
    region.block.insert_op_before(new, old)
    old.detach()
    old.erase()


def move_body(region: Region) -> Region:
    """The contents of a region as a region that belongs to no operation."""
    new = Region()
    block = region.block
    region.detach_block(block)
    new.add_block(block)
    return new


def carry(loop: ops.Loop, starts: Sequence[SSAValue]) -> tuple[ops.Loop, list[SSAValue]]:
    """A loop that carries further values, which it yields as it gets them until `set_yield` says otherwise: the new loop and the arguments of its block."""
    block, old = loop.body.block, last(loop.body)
    arguments = [block.insert_arg(v.type, len(block.args)) for v in starts]
    for argument, start in zip(arguments, starts, strict=True):
        argument.name_hint = start.name_hint
    set_yield(loop.body, [*old.values, *arguments])
    return _remade(loop, [*loop.carried, *starts]), list(arguments)


def uncarry(loop: ops.Loop, kept: Sequence[int]) -> ops.Loop:
    """A loop that carries these of its values alone; nobody uses the others but to carry them on."""
    block = loop.body.block
    values = list(last(loop.body).values)
    set_yield(loop.body, [values[i] for i in kept])
    carried = list(loop.carried)
    first = len(block.args) - len(carried)
    for i in reversed(range(len(carried))):
        if i not in kept:
            block.erase_arg(block.args[first + i])
    return _remade(loop, [carried[i] for i in kept], kept)


def _remade(loop: ops.Loop, carried: Sequence[SSAValue], kept: Sequence[int] | None = None) -> ops.Loop:
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
        was = (kept[i] if kept is not None else i) if kept is not None or i < len(old) else None
        if was is not None:
            result.name_hint = old[was].name_hint
            old[was].replace_all_uses_with(result)
    loop.detach()
    loop.erase()
    return new


def give(
    branch: ops.Branch, values: Sequence[tuple[SSAValue, SSAValue]], kept: Sequence[int] | None = None
) -> tuple[ops.Branch, list[SSAValue]]:
    """A branch that gives these of its results (all, if not said) and further ones, pairs of what its regions yield: the new branch and its new results."""
    keep = list(range(len(branch.results))) if kept is None else list(kept)
    for k, region in enumerate((branch.then, branch.orelse)):
        given = last(region).values
        set_yield(region, [*(given[i] for i in keep), *(pair[k] for pair in values)])
    new = branch.made(branch.decision, move_body(branch.then), move_body(branch.orelse))
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
    """Moves the operations of a block without arguments before another operation; gives what the block yielded."""
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
