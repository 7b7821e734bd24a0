"""Choose values to rematerialise or inline in their readers, which get no registers of their own.

An operation with a single reader of the same layout is computed inside the reader's loop. Cheap values are
computed again in every reader.

The reader must be elementwise, in the same block, with no operation that has an effect between: values that the program
computes before a wait stay there. A scalar is inlined unless its reader is a tile.
"""

from __future__ import annotations

from xdsl.ir import Operation, SSAValue

from ...ops.traits import BELOW
from ...syntax.types import BOOL, I32
from ..analyses.alignment import reads_pairs
from ..ir import ops
from ..ir.ir_types import TileT, dtype_of, is_scalar, is_tile
from ..ir.ir_walk import every, is_inlined, mark, unmark
from ..ir.machine_ops import WarpIf
from ..ir.operand_access import Function
from .rewriting import before

DEEPEST = 64  # nesting of a C++ expression, which printers walk by recursion
LIMITS = 8  # limits that are rematerialised together; a combination of more is kept


def _is_free(op: ops.Apply) -> bool:
    """Return whether a tile costs nothing to rematerialise: one number, or indices."""
    kind = op.kind
    return kind.repeats is not None or kind.index_of is not None


def _clone_for_readers(op: ops.Apply) -> None:
    """Clone a free tile for each reader that needs it in registers, so that the other readers inline it."""
    uses = [u for u in op.result.uses if not is_elementwise(u.operation)]
    if len(uses) == len(list(op.result.uses)) and len(uses) < 2:
        return
    for use in uses:
        clone = op.clone()
        clone.results[0].name_hint = op.result.name_hint
        before(use.operation, clone)
        use.operation.operands[use.index] = clone.results[0]
    if not list(op.result.uses):
        op.detach()
        op.erase()


def run(kernel: ops.Kernel) -> None:
    """Mark the values that are inlined."""
    for op in list(every(kernel)):
        unmark(op)
        if isinstance(op, ops.Apply) and _is_free(op):
            _clone_for_readers(op)
    depths: dict[Operation, int] = {}  # of the expressions of inlined values
    for op in every(kernel):  # operands are decided before their readers
        if _should_inline(op):
            depth = 1 + max((depths.get(x.owner, 0) for x in op.operands if isinstance(x.owner, Operation)), default=0)
            if depth <= DEEPEST:
                mark(op)
                depths[op] = depth


def _should_inline(op: Operation) -> bool:
    if isinstance(op, ops.Perform):
        return op.gathers and not reads_pairs(op) and _has_single_reader(op)
    if not isinstance(op, ops.Apply):
        return _should_inline_function(op)
    uses = list(op.result.uses)
    if is_scalar(op.result):
        return len(uses) == 1 and _inlines_scalars(uses[0].operation) and uses[0].operation.parent is op.parent
    if op.entry.reduces:
        return False
    if _is_free(op):
        return all(is_elementwise(u.operation) for u in uses)
    if is_column_limit(op.result):
        return all(is_elementwise(u.operation) for u in uses)
    return _has_single_reader(op)


def _should_inline_function(op: Operation) -> bool:
    if not isinstance(op, Function) or not op.ELEMENTWISE or op.IN_REGISTERS:
        return False
    return all(is_elementwise(u.operation) for u in op.results[0].uses) if op.FREE else _has_single_reader(op)


def _inlines_scalars(user: Operation) -> bool:
    if isinstance(user, ops.Apply):
        return is_scalar(user.result)
    return isinstance(user, (ops.Perform, ops.At, ops.For, ops.If, ops.Units)) and not any(is_tile(r) for r in user.results)


def _has_single_reader(op: Operation) -> bool:
    """Return whether a single elementwise operation of the same layout reads an operation.

    No effect may come between the two.
    """
    uses = list(op.results[0].uses)
    if len(uses) != 1 or uses[0].operation.parent is not op.parent:
        return False
    user, t = uses[0].operation, op.results[0].type
    # a place is evaluated at its accesses: there must be one, with no effect before it
    if isinstance(user, ops.At) and _reads_memory(op):
        uses = list(user.result.uses)
        if len(uses) != 1 or uses[0].operation.parent is not op.parent or not is_elementwise(uses[0].operation):
            return False
        user = uses[0].operation
    if not is_elementwise(user) or not isinstance(t, TileT):
        return False
    if isinstance(user, ops.Apply) or (isinstance(user, Function) and user.ELEMENTWISE):
        r = user.results[0].type
        if not isinstance(r, TileT) or ((r.layout != t.layout or r.shape != t.shape) and not _is_per_column(op, r)):
            return False
    op_between = op.next_op  # a tile that is loaded between the two would be live beside the operands
    while op_between is not user:
        if op_between is None or (isinstance(op_between, ops.Perform) and not op_between.kind.indexed) or op_between.regions:
            return False
        op_between = op_between.next_op
    return True


def _is_per_column(op: Operation, reader: TileT) -> bool:
    """Return whether an operation makes numbers per column, for a reader of all rows.

    A thread has the elements of a column side by side, so the compiler makes each number once there, and needs no
    registers for those of all columns.
    """
    t = op.results[0].type
    return isinstance(t, TileT) and t.layout.is_per_column and reader.layout.is_accumulator and not _reads_memory(op)


def _reads_memory(op: Operation) -> bool:
    """Return whether an operation, or an operand inlined in it, reads memory."""
    return isinstance(op, ops.Perform) or any(
        is_inlined(o) and isinstance(o.owner, Operation) and _reads_memory(o.owner) for o in op.operands
    )


def is_elementwise(op: Operation) -> bool:
    """Return whether an operation reads its tile operands element by element, where they can be inlined."""
    if isinstance(op, ops.Apply):
        return not op.entry.reduces
    if isinstance(op, (ops.At, WarpIf)):
        return True
    if isinstance(op, Function):
        return op.ELEMENTWISE
    return isinstance(op, ops.Perform) and op.gathers


def is_column_limit(value: SSAValue) -> bool:
    """Return whether a truth value is a limit on columns, or a combination of few limits.

    It is rematerialised in its readers, from a number per row.
    """
    worklist, count = [value], 0
    while worklist:
        op = worklist.pop().owner
        if not isinstance(op, ops.Apply) or dtype_of(op.result) != BOOL or not is_tile(op.result):
            return False
        if op.kind.decided_by is not None or op.kind.complements:
            worklist += op.arguments  # counted once per read, as its text is
        elif not _compares_column(op) or (count := count + 1) > LIMITS:
            return False
    return True


def _compares_column(op: ops.Apply) -> bool:
    """Return whether an operation compares a column's index with a number per row."""
    if op.kind.compares not in BELOW or dtype_of(op.arguments[0]) != I32:
        return False
    return any(ops.kind_of(a).index_of == "column" and not has_columns(b) for a, b in (op.arguments, op.arguments[::-1]))


def has_columns(value: SSAValue) -> bool:
    """Return whether a value differs from column to column."""
    return isinstance(value.type, TileT) and (value.type.layout.has_accumulator_columns or value.type.layout.is_fragment)


__all__ = ["has_columns", "is_column_limit", "is_elementwise", "run"]
