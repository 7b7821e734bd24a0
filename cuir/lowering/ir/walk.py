"""Going through IR: the operations of a block, all operations inside one, the end of a region."""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.ir import Block, Operation, Region

from .control import Yield


def operations(block: Block) -> list[Operation]:
    """The operations of a block as they are now, so that what is visited may go. (`list(block.ops)` goes through them twice: first it counts.)"""
    found, op = list[Operation](), block.first_op
    while op is not None:
        found.append(op)
        op = op.next_op
    return found


def every(op: Operation) -> Iterator[Operation]:
    """All operations inside one, in the order of the text; a list first, so that what is visited may go."""
    for region in op.regions:
        for block in region.blocks:
            for inner in operations(block):
                if inner.parent is not None:
                    yield inner
                    if inner.regions:
                        yield from every(inner)


def inner_first(op: Operation) -> Iterator[Operation]:
    """As `every`, each operation behind those inside of it."""
    for region in op.regions:
        for inner in operations(region.block):
            if inner.regions:
                yield from inner_first(inner)
            yield inner


def last(region: Region) -> Yield:
    """The end of a region."""
    end = region.block.last_op
    assert isinstance(end, Yield)
    return end
