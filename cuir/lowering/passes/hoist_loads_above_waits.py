"""Issue loads of tensors before a wait for a product, so that memory answers during the wait.

A load that is issued before the wait for a product overlaps with the product.

The kernel must not write the loaded tensor, and the indices must be known before the wait. Moved are numbers, and
numbers per row. A load in a branch after the wait goes into a branch on the same condition before it. Exact.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from xdsl.ir import Block, Operation, Region, SSAValue

from ..analyses.memory import is_memory_effect_free
from ..analyses.value_flow import is_tile_wait
from ..ir import constructors, ops
from ..ir.ir_types import ScalarT, TileT, is_scalar
from ..ir.ir_walk import every, operations
from .rewriting import before


def run(kernel: ops.Kernel) -> None:
    """Move the reads behind each wait."""
    for op in every(kernel):
        if is_tile_wait(op):
            _move_reads(op)


def _move_reads(wait: Operation) -> None:
    """Move the reads behind a wait, up to the next wait or the end of the block."""
    late_ops: list[Operation] = [wait]
    op = wait.next_op
    while op is not None and not is_tile_wait(op):
        late_ops.append(op)
        op = op.next_op
    for op in late_ops[1:]:
        if isinstance(op, ops.If):
            for in_then in (True, False):
                _move_from_branch(op, in_then, wait, late_ops)
        elif _is_movable_read(op):
            _move(_collect_chain(op, late_ops) or (), wait)


def _move_from_branch(branch: ops.If, in_then: bool, wait: Operation, late_ops: Sequence[Operation]) -> None:
    """Move reads of one side of a branch into a branch before the wait, whose other side yields zeros."""
    side_ops = operations((branch.then if in_then else branch.orelse).block)
    reads = {op: chain for op in side_ops if _is_movable_read(op) and (chain := _collect_chain(op, [*late_ops, *side_ops])) is not None}
    condition = _collect_definitions([branch.condition], late_ops)
    if not reads or condition is None:
        return
    needed = dict.fromkeys(op for read_chain in reads.values() for op in read_chain)
    _move([*condition, *(op for op in needed if op not in side_ops)], wait)
    side, zero_side, copies = Block(), Block(), dict[SSAValue, SSAValue]()
    for op in side_ops:
        if op in needed:
            copy = op.clone(copies)
            copy.location = op.location
            side.add_op(copy)
    side.add_op(ops.end([copies[op.results[0]] for op in reads]))
    zero_side.add_op(ops.end([_add_zero(op.results[0], zero_side) for op in reads]))
    new_branch = ops.branch(branch.condition, *map(Region, (side, zero_side) if in_then else (zero_side, side)))
    before(wait, new_branch)
    for op, result in zip(reads, new_branch.results, strict=True):
        result.name_hint = op.results[0].name_hint
        op.results[0].replace_all_uses_with(result)


def _is_movable_read(op: Operation) -> bool:
    return isinstance(op, ops.Perform) and is_memory_effect_free(op) and len(op.results) == 1 and _is_small(op.results[0])


def _is_small(value: SSAValue) -> bool:
    """Return whether a thread holds few elements of a value."""
    return is_scalar(value) or (isinstance(value.type, TileT) and value.type.layout.is_constant_along_rows)


def _collect_chain(op: Operation, late: Collection[Operation]) -> list[Operation] | None:
    """Return an operation and those of its operands' definitions among `late`, in order.

    None if one of them cannot be computed earlier.
    """
    definitions = _collect_definitions(op.operands, late)
    return None if definitions is None else [*definitions, op]


def _collect_definitions(values: Sequence[SSAValue], late: Collection[Operation]) -> list[Operation] | None:
    """Return the definitions of values among `late`, in order; None if one cannot be computed earlier."""
    definitions: dict[Operation, None] = {}
    for value in values:
        op = value.owner
        if not isinstance(op, Operation) or op not in late:
            continue
        if op.regions or not is_memory_effect_free(op) or not (isinstance(op, ops.At) or all(map(_is_small, op.results))):
            return None
        chain = _collect_chain(op, late)
        if chain is None:
            return None
        definitions |= dict.fromkeys(chain)
    return list(definitions)


def _move(operations: Sequence[Operation], wait: Operation) -> None:
    for op in operations:
        if wait.is_before_in_block(op):
            op.detach()
            assert wait.parent is not None
            wait.parent.insert_op_before(op, wait)


def _add_zero(value: SSAValue, block: Block) -> SSAValue:
    t = value.type
    assert isinstance(t, (ScalarT, TileT))
    zero = ops.constant(0.0 if t.element.is_float else 0, t.element)
    block.add_op(zero)
    if isinstance(t, ScalarT):
        return zero.result
    tile = constructors.full(zero.result, t)
    block.add_op(tile)
    return tile.result
