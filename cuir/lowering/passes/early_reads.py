"""Reads of tensors that a wait for a product stands before are issued in front of it, so that memory answers meanwhile.

Meant are numbers, and numbers a row, of tensors that the kernel does not write, whose indices are known before the wait: what masks and score rules read for a block of
keys. A read in a branch behind the wait goes into a branch on the same condition in front of it. No result changes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.traits import Pure

from ..facts.flow import waits
from ..facts.uniformity import reads_constant
from ..ir import make, ops
from ..ir.types import ScalarT, TileT, is_scalar
from ..ir.walk import every, operations
from .rewriting import before


def run(kernel: ops.Kernel) -> None:
    for op in every(kernel):
        if waits(op):
            _early(op)


def _early(wait: Operation) -> None:
    """What is read behind a wait, as far as the next one or the end of the block."""
    behind: list[Operation] = [wait]
    op = wait.next_op
    while op is not None and not waits(op):
        behind.append(op)
        op = op.next_op
    for op in behind[1:]:
        if isinstance(op, ops.If):
            for taken in (True, False):
                _out_of_branch(op, taken, wait, behind)
        elif _reads(op):
            _move(_needed(op, behind) or (), wait)


def _out_of_branch(branch: ops.If, taken: bool, wait: Operation, behind: Sequence[Operation]) -> None:
    """Reads of one side of a branch into a branch before the wait, whose other side gives zeros."""
    inside = operations((branch.then if taken else branch.orelse).block)
    reads = {op: whole for op in inside if _reads(op) and (whole := _needed(op, [*behind, *inside])) is not None}
    condition = _made_by([branch.condition], behind)
    if not reads or condition is None:
        return
    needed = dict.fromkeys(op for each in reads.values() for op in each)
    _move([*condition, *(op for op in needed if op not in inside)], wait)
    side, other, copies = Block(), Block(), dict[SSAValue, SSAValue]()
    for op in inside:
        if op in needed:
            copy = op.clone(copies)
            copy.location = op.location
            side.add_op(copy)
    side.add_op(ops.end([copies[op.results[0]] for op in reads]))
    other.add_op(ops.end([_zero(op.results[0], other) for op in reads]))
    made = ops.branch(branch.condition, *map(Region, (side, other) if taken else (other, side)))
    before(wait, made)
    for op, result in zip(reads, made.results, strict=True):
        result.name_hint = op.results[0].name_hint
        op.results[0].replace_all_uses_with(result)


def _reads(op: Operation) -> bool:
    return isinstance(op, ops.Perform) and reads_constant(op) and len(op.results) == 1 and _small(op.results[0])


def _small(value: SSAValue) -> bool:
    """Whether a thread holds few numbers of it."""
    return is_scalar(value) or (isinstance(value.type, TileT) and value.type.layout.data in ("rows", "one"))


def _needed(op: Operation, late: Collection[Operation]) -> list[Operation] | None:
    """An operation and those among `late` that its operands are made of, in order; None if one of them cannot be worked out earlier."""
    made = _made_by(op.operands, late)
    return None if made is None else [*made, op]


def _made_by(values: Sequence[SSAValue], late: Collection[Operation]) -> list[Operation] | None:
    found: dict[Operation, None] = {}
    for value in values:
        op = value.owner
        if not isinstance(op, Operation) or op not in late:
            continue
        pure = isinstance(op, (ops.Apply, ops.Constant, ops.At)) or op.has_trait(Pure) or _reads(op)
        if not pure or not (isinstance(op, ops.At) or all(map(_small, op.results))):
            return None
        made = _needed(op, late)
        if made is None:
            return None
        found |= dict.fromkeys(made)
    return list(found)


def _move(moved: Sequence[Operation], wait: Operation) -> None:
    for op in moved:
        if wait.is_before_in_block(op):
            op.detach()
            assert wait.parent is not None
            wait.parent.insert_op_before(op, wait)


def _zero(value: SSAValue, block: Block) -> SSAValue:
    t = value.type
    assert isinstance(t, (ScalarT, TileT))
    zero = ops.constant(0.0 if t.element.is_float else 0, t.element)
    block.add_op(zero)
    if isinstance(t, ScalarT):
        return zero.result
    tile = make.full(zero.result, t)
    block.add_op(tile)
    return tile.result
