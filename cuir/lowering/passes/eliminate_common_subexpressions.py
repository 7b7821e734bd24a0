"""Compute equal values once: replace an operation by an equal one that dominates it.

Two loads of the same element of a tensor count as equal if the kernel does not write this tensor.

Tiles are numbered, too; `inline_elementwise` rematerialises cheap ones.
"""

from __future__ import annotations

from xdsl.ir import Block, Operation

from ..analyses.memory import is_memory_effect_free
from ..ir import machine_ops as machine
from ..ir import ops
from ..ir.ir_walk import operations
from .rewriting import replace

Key = tuple[object, ...]


def run(kernel: ops.Kernel) -> None:
    """Replace values of a kernel that equal earlier ones by these, so that each is computed once."""
    _number_block(kernel.body.block, {})


def _number_block(block: Block, available: dict[Key, Operation]) -> None:
    available = dict(available)
    for op in operations(block):
        for region in op.regions:
            _number_block(region.block, _select_constants(available) if isinstance(op, (ops.Role, machine.Queue)) else available)
        key = value_key(op)
        if key is None:
            continue
        equal = available.setdefault(key, op)  # a key is hashed once
        if equal is not op:
            if isinstance(op, ops.Apply) and op.exact is not None:  # one of the two feeds a decision
                equal.properties["exact"] = op.exact
            replace(op, equal.results)


def _select_constants(available: dict[Key, Operation]) -> dict[Key, Operation]:
    """Return the constants, which roles share.

    A role would have to keep other values of the frame in registers from its start.
    """
    return {key: op for key, op in available.items() if isinstance(op, ops.Constant)}


def value_key(op: Operation) -> Key | None:
    """Return the key that operations of equal values share.

    None for those whose value depends on the time at which they run.
    """
    if isinstance(op, ops.Apply):  # most are
        return ("apply", op.op, op.result.type, op.arguments)
    if isinstance(op, ops.Constant):
        return ("constant", op.text.data, op.result.type)
    if op.regions or not is_memory_effect_free(op):
        return None
    operands = tuple(op.operands)
    if isinstance(op, ops.At):
        return ("at", operands, op.sizes, op.given, op.result.type)
    if isinstance(op, ops.Perform):
        return ("perform", op.op, op.params, op.consts, operands, op.results[0].type)
    return (op.name, operands, tuple(op.properties.items()), tuple(r.type for r in op.results))
