"""Going through IR: all operations inside one, the end of a region."""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.ir import Operation, Region

from .control import Yield


def every(op: Operation) -> Iterator[Operation]:
    """All operations inside one, in the order of the text; a list first, so that what is visited may go."""
    for region in op.regions:
        for block in region.blocks:
            for inner in list(block.ops):
                if inner.parent is not None:
                    yield inner
                    yield from every(inner)


def inner_first(op: Operation) -> Iterator[Operation]:
    """As `every`, each operation behind those inside of it."""
    for region in op.regions:
        for inner in list(region.block.ops):
            yield from inner_first(inner)
            yield inner


def last(region: Region) -> Yield:
    """The end of a region."""
    end = region.block.last_op
    assert isinstance(end, Yield)
    return end
