"""Gathers of consecutive elements along the columns become reads of a box, of which a warp reads each element once, and lanes work out what follows from them alone.

Eight lanes need the same column: one bounds check and one read of each, coalesced, instead of C / 4 by each lane, which would all be in flight at once and
leave no registers. A function of what was read is computed by the lane that read it, before the others get it: C / 32 times a lane. The tensor is one that
the kernel does not write. No result changes: an index that wraps lies outside of the tensor, as one that does not.
"""

from __future__ import annotations

from collections.abc import Collection

from xdsl.ir import Operation, SSAValue

from ...syntax.types import F32, I32
from ..facts.uniformity import reads_constant
from ..ir import make, ops
from ..ir.machine_tiles import Exchange, exchange, read_columns
from ..ir.types import TensorT, TileT, dtype_of, is_scalar, tile
from ..ir.walk import every
from . import affine_columns
from .rewriting import insert, replace
from .simplify import number

DEAR = 4  # instructions of a function: of fewer a thread makes its columns' results itself, sooner than it gets them from other lanes


def run(kernel: ops.Kernel) -> None:
    for op in every(kernel):
        if isinstance(op, ops.Perform) and op.gathers and reads_constant(op):
            _gather(op)
    functions: dict[ops.Apply, None] = {}
    for op in every(kernel):
        if isinstance(op, ops.Apply) and _follows(op, functions):
            functions[op] = None
    worth: set[Operation] = set()
    for function in reversed(functions):  # what reads a function comes behind it
        if _worth(function, functions, worth):
            worth.add(function)
    for function in functions:
        if function in worth:
            _by_lanes(function)


def _gather(op: ops.Perform) -> None:
    result, place = op.results[0], op.arg("place").owner
    assert isinstance(place, ops.At)
    if not isinstance(result.type, TileT) or result.type.layout.data != "columns":
        return
    parts: list[tuple[SSAValue | None, int]] = []
    for start, _ in place.parts:
        if start is None or is_scalar(start):
            parts.append((start, -1))
            continue
        columns = affine_columns.affine(start, op)
        if columns is None or columns.slope not in (0, 1):
            return
        base = columns.base
        if base is not None and not is_scalar(base):
            base = _number(base)
            if base is None:
                return
        parts.append((base, result.type.shape[1] if columns.slope else -1))
    if [size for _, size in parts if size != -1] != [result.type.shape[1]]:
        return
    dtype, cols = result.type.dtype, result.type.cols
    box = insert(op, ops.at(place.array, _given(op, parts), TensorT(dtype, ops.ArrayAttr([cols]))))
    replace(op, [insert(op, exchange(insert(op, read_columns(box))))])


def _follows(op: ops.Apply, functions: Collection[Operation]) -> bool:
    """Whether it is a function of numbers that lanes hold; functions: those before it that are."""
    t = op.result.type
    if not isinstance(t, TileT) or t.layout.data != "columns" or t.element not in (F32, I32) or op.entry.reduces:
        return False
    tiles = [a.owner for a in op.arguments if not is_scalar(a)]
    return bool(tiles) and all(isinstance(x, Exchange) or x in functions for x in tiles)


def _worth(op: ops.Apply, functions: Collection[Operation], worth: Collection[Operation]) -> bool:
    """Whether it, or a function of its result, costs more than an exchange, or only functions that do need what it reads, too. worth: functions behind it of which this holds."""
    if op.kind.cost >= DEAR or any(use.operation in worth for use in op.result.uses):
        return True
    others = {use.operation for a in op.arguments if not is_scalar(a) for use in a.uses} - {op}
    return all(isinstance(x, ops.Apply) and x in functions and x.kind.cost >= DEAR for x in others)


def _by_lanes(op: ops.Apply) -> None:
    given = [a.owner.x if isinstance(a.owner, Exchange) else a for a in op.arguments]
    own = insert(op, make.of_kind(op, given, tile(dtype_of(op.result), *op.result.type.shape, "lanes")))  # type: ignore[attr-defined]
    own.name_hint = op.result.name_hint
    replace(op, [insert(op, exchange(own))])


def _given(op: ops.Perform, parts: list[tuple[SSAValue | None, int]]) -> list[tuple[SSAValue | None, int]]:
    """A dim of one element has its index: 0 where none was said."""
    return [(insert(op, ops.constant(0, ops.I32)) if start is None and size == -1 else start, size) for start, size in parts]


def _number(base: SSAValue) -> SSAValue | None:
    """The scalar that a tile repeats; None if it is no such tile."""
    op = base.owner
    if isinstance(op, ops.Apply) and op.kind.repeats and is_scalar(op.arguments[0]):
        return op.arguments[0]
    return base if number(base) is not None and is_scalar(base) else None
