"""Mark words of a unit of work that steer roles of many lanes, by branches, loops or descriptors of products.

nvcc keeps marked words in uniform registers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from xdsl.ir import BlockArgument, Operation, SSAValue

from ...checking.fact_solver import reach
from ..analyses.uniformity import runs_on_one_lane
from ..analyses.value_flow import find_deciders, find_sources
from ..ir import machine_ops as machine
from ..ir import ops
from ..ir.ir_types import is_scalar
from ..ir.ir_walk import every


def run(kernel: ops.Kernel) -> None:
    """Mark words of the queue in each loop that reads it."""
    queue = next((op for op in kernel.body.block.ops if isinstance(op, machine.Queue)), None)
    for loop in queue.loops if queue is not None else ():
        role = loop.parent_op()
        assert isinstance(role, ops.Role), "a queue is made for loops at the top of roles"
        steering = set() if not loop.reads or runs_on_one_lane(role) else _collect_steering(role)
        words = [ops.Word(w.index, w.copies, argument in steering) for w, argument in loop.reads]
        loop.properties["words"] = ops.words_attribute(words)


def _collect_steering(role: ops.Role) -> set[SSAValue]:
    """Return the scalars on which branches, loops and descriptors of products depend."""
    roots = (v for op in every(role) for v in _iterate_steering(op))
    return reach(roots, lambda value: [v for v in _list_inputs(value) if is_scalar(v)])


def _iterate_steering(op: Operation) -> Iterator[SSAValue]:
    if isinstance(op, ops.Apply):  # most are
        return
    if isinstance(op, ops.If):
        yield op.condition
    elif isinstance(op, ops.For):
        yield from (op.start, op.stop)
    elif isinstance(op, ops.Perform) and op.entry.family == "compute" and op.entry.effects.group:
        yield from (v for a in op.arguments if isinstance(a.owner, ops.At) for v in a.owner.starts)


def _list_inputs(value: SSAValue) -> Sequence[SSAValue]:
    """Return the values of a role on which a value depends, in this turn of its loop or the one before."""
    op = value.owner
    if isinstance(op, ops.Apply):  # most are
        return op.arguments
    loop = value.block.parent_op() if isinstance(value, BlockArgument) else None
    if isinstance(loop, ops.ForUnits) and value not in loop.inner:
        return ()  # a word, or the unit of work
    return [*(find_sources(value) or (op.operands if isinstance(op, Operation) else ())), *find_deciders(value)]
