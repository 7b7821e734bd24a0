"""Computes equal values once: an operation whose operands and result type are those of one that comes before it on every path gives way to that.

Reads of tensors that the kernel does not write count as pure. Tiles too: what is cheap to make again is made again where it is read (see `fusion`).
"""

from __future__ import annotations

from xdsl.ir import Block, Operation
from xdsl.traits import Pure

from ..facts.uniformity import reads_constant
from ..ir import machine, ops
from ..ir.walk import operations
from .rewriting import replace

Key = tuple[object, ...]


def run(kernel: ops.Kernel) -> None:
    _block(kernel.body.block, {})


def _block(block: Block, known: dict[Key, Operation]) -> None:
    known = dict(known)
    for op in operations(block):
        for region in op.regions:
            _block(region.block, _numbers(known) if isinstance(op, (ops.Role, machine.Queue)) else known)
        key = number(op)
        if key is None:
            continue
        if key in known:
            if isinstance(op, ops.Apply) and op.exact is not None:  # what decides for one of the two decides for both
                known[key].properties["exact"] = op.exact
            replace(op, known[key].results)
        else:
            known[key] = op


def _numbers(known: dict[Key, Operation]) -> dict[Key, Operation]:
    """What roles share: known numbers. Of what the frame computes a role would have to keep a register from before it began."""
    return {key: op for key, op in known.items() if isinstance(op, ops.Constant)}


def number(op: Operation) -> Key | None:
    """What is equal of operations that give equal values; None of those whose value depends on when they run."""
    operands = tuple(op.operands)
    if isinstance(op, ops.Constant):
        return ("constant", op.text.data, op.result.type)
    if isinstance(op, ops.Apply):
        return ("apply", op.op, op.result.type, operands)
    if isinstance(op, ops.At):
        return ("at", operands, op.sizes, op.given, op.result.type)
    if isinstance(op, ops.Perform) and op.results and reads_constant(op):
        return ("perform", op.op, op.params, op.consts, operands, op.results[0].type)
    if op.has_trait(Pure) and not op.regions:
        return (op.name, operands, tuple(op.properties.items()), tuple(r.type for r in op.results))
    return None
