"""Copies of the copy engine and products that are issued in a row, as one statement of a worker."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import IntAttr
from xdsl.ir import Operation

from ...ops.base import PRODUCTS
from ..ir import ops
from ..ir.ir_types import is_scalar
from ..ir.ir_walk import is_inlined

RUN = "run"  # attribute of the first operation: how many are issued together


def record_run(op: Operation) -> None:
    """Record on an operation how many of its kind are issued together with it, unless an earlier one has it in its run."""
    op.attributes.pop(RUN, None)
    if isinstance(op, ops.Perform) and _is_issued(op) and _find_previous(op) is None:
        following = _collect_following(op)
        if following:
            op.attributes[RUN] = IntAttr(1 + len(following))


def list_run(op: Operation) -> Sequence[Operation]:
    """Return the operations of a block that are issued together, by their record, with the views and scalars between them."""
    run, count = [op], count_run(op) - 1
    following = op.next_op
    while count and following is not None:
        run.append(following)
        count -= _is_like(following, op)
        following = following.next_op
    return run


def count_run(op: Operation) -> int:
    """Return how many operations are issued together with one, itself included, by its record."""
    count = op.attributes.get(RUN)
    return count.data if isinstance(count, IntAttr) else 1


def find_run_start(op: Operation) -> Operation:
    """Return the first of the operations that are issued together with one, by the operations around it."""
    if isinstance(op, ops.Perform) and _is_issued(op):
        while (previous := _find_previous(op)) is not None:
            op = previous
    return op


def _is_issued(op: ops.Perform) -> bool:
    """Return whether an operation starts a product, or a copy that arrives at a barrier."""
    effects = op.entry.effects
    return (op.entry.traits.product and effects.group == PRODUCTS) or bool(effects.completes and effects.accesses)


def _is_like(op: Operation, first: Operation) -> bool:
    return isinstance(op, ops.Perform) and isinstance(first, ops.Perform) and op.op == first.op


def _is_between(op: Operation, first: ops.Perform) -> bool:
    """Return whether an operation may stand between those of a run: nothing is done there, or scalars among products."""
    if isinstance(op, (ops.At, ops.Constant)):
        return True
    if first.entry.effects.group == PRODUCTS:
        return isinstance(op, ops.Apply) and is_scalar(op.result)
    return len(op.results) == 1 and is_inlined(op.results[0])


def _collect_following(first: ops.Perform) -> list[Operation]:
    found, op = list[Operation](), first.next_op
    while op is not None and (_is_like(op, first) or _is_between(op, first)):
        found += [op] if _is_like(op, first) else []
        op = op.next_op
    return found


def _find_previous(op: ops.Perform) -> ops.Perform | None:
    """Return the operation before one that has it in its run."""
    previous = op.prev_op
    while previous is not None and not _is_like(previous, op):
        if not _is_between(previous, op):
            return None
        previous = previous.prev_op
    return previous if isinstance(previous, ops.Perform) else None
