"""Walks over IR: the operations of a block, all inside one, the end of a region, the loop around an operation.

The mark of inlined values, which are computed in their readers.

`passes/inline_elementwise.py` sets it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from xdsl.dialects.builtin import UnitAttr
from xdsl.ir import Block, Operation, OpResult, Region, SSAValue

from . import ops
from .control import Loop, Yield


def operations(block: Block) -> list[Operation]:
    """Return the operations of a block as they are now, so that visited ones may be removed.

    `list(block.ops)` walks them twice, since it counts first.
    """
    result, op = list[Operation](), block.first_op
    while op is not None:
        result.append(op)
        op = op._next_op  # as `next_op`, which costs a call; walks visit every operation some fifty times
    return result


def every(op: Operation) -> Iterator[Operation]:
    """Yield all operations inside one, in the order of the text.

    Each block is listed first, so that visited operations may be removed.
    """
    around = [_iterate_inside(op)]  # a stack, since nested generators would pass on each operation once per level
    while around:
        for inner in around[-1]:
            if inner.parent is not None:
                yield inner
                if inner.regions:
                    around.append(_iterate_inside(inner))
                    break
        else:
            around.pop()


def _iterate_inside(op: Operation) -> Iterator[Operation]:
    """Iterate over the operations of an operation's regions, of one block each, as it is when its turn comes."""
    return chain.from_iterable(operations(block) for region in op.regions if (block := region.first_block) is not None)


def inner_first(op: Operation) -> Iterator[Operation]:
    """Yield the same operations as `every`, each after those inside it."""
    for region in op.regions:
        for inner in operations(region.block):
            if inner.regions:
                yield from inner_first(inner)
            yield inner


def last(region: Region) -> Yield:
    """Return the end of a region."""
    end = region.first_block.last_op if region.first_block is not None else None
    assert isinstance(end, Yield)
    return end


def find_innermost_loop(op: Operation) -> Loop | None:
    """Return the innermost loop around an operation."""
    parent = op.parent_op()
    while parent is not None and not isinstance(parent, Loop):
        parent = parent.parent_op()
    return parent


MARK = "inlined"
PLACELESS = (ops.Constant, ops.Parameter, ops.At)


def mark(op: Operation) -> None:
    """Mark the result of an operation as inlined."""
    op.attributes[MARK] = UnitAttr()


def unmark(op: Operation) -> None:
    """Remove the mark of an operation."""
    op.attributes.pop(MARK, None)


def is_inlined(value: SSAValue) -> bool:
    """Return whether a value is computed in its readers, without registers of its own."""
    if type(value) is not OpResult:  # a hot path, and `isinstance` is slow to return False
        return False
    op = value.op
    return MARK in op.attributes or type(op) in PLACELESS


def iterate_joined(op: ops.Apply, name: str) -> Iterator[SSAValue]:
    """Yield the truth values that a tree of one operation joins, each once.

    Inner operations belong to the tree if it alone reads them.
    """
    parts: dict[SSAValue, None] = {}
    for value in op.arguments:
        inner = value.owner
        is_inner = isinstance(inner, ops.Apply) and inner.op == name and inner.parent is op.parent and len(list(value.uses)) == 1
        parts |= dict.fromkeys(iterate_joined(inner, name) if is_inner else [value])  # type: ignore[arg-type]
    yield from parts
