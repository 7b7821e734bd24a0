"""Which values are written nowhere: they are worked out inside the expression that reads them.

An elementwise operation read once, by an elementwise operation of the same layout in the same block, goes into its reader's loop, unless something with an
effect stands between the two: what the program computes before a wait stays before it. What costs nothing to make again (a number, a row's or a column's
index, a limit on columns) is worked out wherever it is read. A scalar goes into its reader unless that is a tile: loops over elements read names.
"""

from __future__ import annotations

from xdsl.ir import Operation, SSAValue

from ...ops.traits import BELOW
from ...syntax.types import BOOL, I32
from ..facts.pieces import reads_pairs
from ..ir import ops
from ..ir.function import Function
from ..ir.inlining import inlined, mark, unmark
from ..ir.types import TileT, dtype_of, is_scalar, is_tile
from ..ir.walk import every
from ..ir.warps import WarpIf
from .rewriting import before

DEEPEST = 64  # operations within one another in an expression of C++; printers walk them by recursion
LIMITS = 8  # that are worked out together again for each reader; more are kept


def _free(op: ops.Apply) -> bool:
    """Whether a tile costs nothing to make: of one number, or of indices."""
    of = op.kind
    return of.repeats is not None or of.index_of is not None


def _apart(op: ops.Apply) -> None:
    """Gives each reader that needs such a tile whole one of its own, so that the others work it out."""
    uses = [u for u in op.result.uses if not elementwise(u.operation)]
    if len(uses) == len(list(op.result.uses)) and len(uses) < 2:
        return
    for use in uses:
        copy = op.clone()
        copy.results[0].name_hint = op.result.name_hint
        before(use.operation, copy)
        use.operation.operands[use.index] = copy.results[0]
    if not list(op.result.uses):
        op.detach()
        op.erase()


def run(kernel: ops.Kernel) -> None:
    for op in list(every(kernel)):
        unmark(op)
        if isinstance(op, ops.Apply) and _free(op):
            _apart(op)
    depths: dict[Operation, int] = {}  # of the expressions of what is worked out where it is read
    for op in every(kernel):  # readers come later: whether an operand is free is known when its reader is asked
        if _inlined(op):
            depth = 1 + max((depths.get(x.owner, 0) for x in op.operands if isinstance(x.owner, Operation)), default=0)
            if depth <= DEEPEST:
                mark(op)
                depths[op] = depth


def _inlined(op: Operation) -> bool:
    if isinstance(op, ops.Perform):
        return op.gathers and not reads_pairs(op) and _single(op)
    if not isinstance(op, ops.Apply):
        return _of_machine(op)
    uses = list(op.result.uses)
    if is_scalar(op.result):
        return len(uses) == 1 and _takes_scalar(uses[0].operation) and uses[0].operation.parent is op.parent
    if op.entry.reduces:
        return False
    if _free(op):
        return all(elementwise(u.operation) for u in uses)
    if limit(op.result):
        return all(elementwise(u.operation) for u in uses)
    return _single(op)


def _of_machine(op: Operation) -> bool:
    if not isinstance(op, Function) or not op.ELEMENTWISE or op.KEPT:
        return False
    return all(elementwise(u.operation) for u in op.results[0].uses) if op.FREE else _single(op)


def _takes_scalar(user: Operation) -> bool:
    if isinstance(user, ops.Apply):
        return is_scalar(user.result)
    return isinstance(user, (ops.Perform, ops.At, ops.For, ops.If, ops.Units)) and not any(is_tile(r) for r in user.results)


def _single(op: Operation) -> bool:
    """Whether one elementwise operation of the same layout alone reads it, with no effect between the two."""
    uses = list(op.results[0].uses)
    if len(uses) != 1 or uses[0].operation.parent is not op.parent:
        return False
    user, t = uses[0].operation, op.results[0].type
    # a place is worked out where it is accessed: that must be one read, with no effect before it
    if isinstance(user, ops.At) and _reads_memory(op):
        uses = list(user.result.uses)
        if len(uses) != 1 or uses[0].operation.parent is not op.parent or not elementwise(uses[0].operation):
            return False
        user = uses[0].operation
    if not elementwise(user) or not isinstance(t, TileT):
        return False
    if isinstance(user, ops.Apply) or (isinstance(user, Function) and user.ELEMENTWISE):
        r = user.results[0].type
        if not isinstance(r, TileT) or ((r.layout != t.layout or r.shape != t.shape) and not _of_columns(op, r)):
            return False
    between = op.next_op
    while between is not user:
        if between is None or (isinstance(between, ops.Perform) and not _harmless(between)) or between.regions:
            return False
        between = between.next_op
    return True


def _of_columns(op: Operation, reader: TileT) -> bool:
    """Whether an operation makes numbers a column, for a reader of all rows: a thread has the elements of a column side by side, so the compiler makes each number once there,
    and needs no registers for those of all columns."""
    t = op.results[0].type
    return isinstance(t, TileT) and t.layout.data == "columns" and reader.layout.data == "full" and not _reads_memory(op)


def _reads_memory(op: Operation) -> bool:
    """Whether an operation, or an operand worked out with it, reads memory."""
    return isinstance(op, ops.Perform) or any(inlined(o) and isinstance(o.owner, Operation) and _reads_memory(o.owner) for o in op.operands)


def _harmless(op: ops.Perform) -> bool:
    return op.kind.indexed


def elementwise(op: Operation) -> bool:
    """Whether an operation reads its tile operands element by element, where they are worked out."""
    if isinstance(op, ops.Apply):
        return not op.entry.reduces
    if isinstance(op, (ops.At, WarpIf)):
        return True
    if isinstance(op, Function):
        return op.ELEMENTWISE
    return isinstance(op, ops.Perform) and op.gathers


def limit(value: SSAValue) -> bool:
    """Whether a truth value is a limit on columns, or a combination of few limits: it is worked out where it is read, from a number a row."""
    left, count = [value], 0
    while left:
        op = left.pop().owner
        if not isinstance(op, ops.Apply) or dtype_of(op.result) != BOOL or not is_tile(op.result):
            return False
        if op.kind.decided_by is not None or op.kind.complements:
            left += op.arguments  # once for each time that it is read, as its text is
        elif not _compares_column(op) or (count := count + 1) > LIMITS:
            return False
    return True


def _compares_column(op: ops.Apply) -> bool:
    """Whether it compares a column's index with a number a row."""
    if op.kind.compares not in BELOW or dtype_of(op.arguments[0]) != I32:
        return False
    return any(ops.kind_of(a).index_of == "column" and not has_columns(b) for a, b in (op.arguments, op.arguments[::-1]))


def has_columns(value: SSAValue) -> bool:
    return isinstance(value.type, TileT) and value.type.layout.data in ("columns", "full")


__all__ = ["elementwise", "has_columns", "limit", "run"]
