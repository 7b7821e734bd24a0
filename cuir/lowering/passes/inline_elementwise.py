"""Choose values to rematerialise or inline in their readers, which get no registers of their own.

An operation with a single reader of the same layout is computed inside the reader's loop. Cheap values are
computed again in every reader.

The reader must be elementwise, in the same block, with no operation that has an effect between: values that the program
computes before a wait stay there. A scalar is inlined unless its reader is a tile. The reason is recorded for each tile.
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
from ..select.explanation import name_operation
from ..select.ways import IN_READER, IN_REGISTERS, VALUE, Selection, Verdict, fits, forget_selection, misfits
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
        forget_selection(op, VALUE)
        if isinstance(op, ops.Apply) and _is_free(op):
            _clone_for_readers(op)
    depths: dict[Operation, int] = {}  # of the expressions of inlined values
    for op in every(kernel):  # operands are decided before their readers
        verdict = _judge(op)
        if verdict is None:
            continue
        if verdict.fits:
            depth = 1 + max((depths.get(x.owner, 0) for x in op.operands if isinstance(x.owner, Operation)), default=0)
            if depth <= DEEPEST:
                mark(op)
                depths[op] = depth
            else:
                verdict = misfits(f"its reader's expression would have more than {DEEPEST} levels")
        if is_tile(op.results[0]):
            Selection(IN_READER if verdict.fits else IN_REGISTERS, verdict.because).record(op, VALUE)


def _judge(op: Operation) -> Verdict | None:
    """Return whether a value is inlined, and why; None for an operation that is none of its elements' own."""
    if isinstance(op, ops.Perform):
        if not op.gathers:
            return None
        return misfits("two neighbours are read at once") if reads_pairs(op) else _judge_reader(op)
    if not isinstance(op, ops.Apply):
        return _judge_function(op)
    if is_scalar(op.result):
        uses = list(op.result.uses)
        return _SCALAR if len(uses) == 1 and _inlines_scalars(uses[0].operation) and uses[0].operation.parent is op.parent else None
    if op.entry.reduces:
        return None
    if _is_free(op):
        return _judge_readers(op, "it takes no instruction")
    if is_column_limit(op.result):
        return _judge_readers(op, "columns are compared with a number per row, which each reader does again")
    return _judge_reader(op)


_SCALAR = fits("")


def _judge_function(op: Operation) -> Verdict | None:
    if not isinstance(op, Function) or not op.ELEMENTWISE:
        return None
    if op.IN_REGISTERS:
        return misfits("a pass has put it there")
    return _judge_readers(op, "it takes no instruction") if op.FREE else _judge_reader(op)


def _judge_readers(op: Operation, because: str) -> Verdict:
    """Return whether all readers of an operation compute it again."""
    other = next((u.operation for u in op.results[0].uses if not is_elementwise(u.operation)), None)
    return fits(because) if other is None else _misfit_reader(other)


def _misfit_reader(user: Operation) -> Verdict:
    passes_on = isinstance(user, (ops.Yield, ops.Loop))
    return misfits("a loop or a branch passes it on" if passes_on else f"`{name_operation(user)}` reads it as a whole")


def _inlines_scalars(user: Operation) -> bool:
    if isinstance(user, ops.Apply):
        return is_scalar(user.result)
    return isinstance(user, (ops.Perform, ops.At, ops.For, ops.If, ops.Units)) and not any(is_tile(r) for r in user.results)


def _judge_reader(op: Operation) -> Verdict:
    """Return whether a single elementwise operation of the same layout reads an operation, with no effect between the two."""
    uses = list(op.results[0].uses)
    if len(uses) != 1:
        return misfits(f"{len(uses)} operations read it")
    if uses[0].operation.parent is not op.parent:
        return misfits("its reader stands in another block")
    user, t = uses[0].operation, op.results[0].type
    # a place is evaluated at its accesses: there must be one, with no effect before it
    if isinstance(user, ops.At) and _reads_memory(op):
        uses = list(user.result.uses)
        if len(uses) != 1 or uses[0].operation.parent is not op.parent or not is_elementwise(uses[0].operation):
            return misfits("memory is accessed at it more than once, or elsewhere")
        user = uses[0].operation
    if not is_elementwise(user) or not isinstance(t, TileT):
        return _misfit_reader(user)
    if isinstance(user, ops.Apply) or (isinstance(user, Function) and user.ELEMENTWISE):
        r = user.results[0].type
        if not isinstance(r, TileT) or ((r.layout != t.layout or r.shape != t.shape) and not _is_per_column(op, r)):
            return misfits("its reader has another layout")
    op_between = op.next_op  # a tile that is loaded between the two would be live beside the operands
    while op_between is not user:
        if op_between is None or (isinstance(op_between, ops.Perform) and not op_between.kind.indexed) or op_between.regions:
            return misfits(
                f"`{name_operation(op_between)}` stands before its reader" if op_between is not None else "its reader comes first"
            )
        op_between = op_between.next_op
    return fits("one operation reads it")


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
