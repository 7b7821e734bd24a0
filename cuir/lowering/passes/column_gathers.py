"""Gathers of consecutive elements along the columns become reads of a box, of which a warp reads each element once.

Eight lanes need the same column: one bounds check and one read of each, coalesced, instead of C / 4 by each lane, which would all be in flight at once and
leave no registers. The tensor is one that the kernel does not write. No result changes: an index that wraps lies outside of the tensor, as one that does not.
"""

from __future__ import annotations

from xdsl.ir import SSAValue

from ..facts.uniformity import reads_constant
from ..ir import ops
from ..ir.machine_tiles import read_columns
from ..ir.types import TensorT, TileT, is_scalar
from ..ir.walk import every
from . import affine_columns
from .rewriting import insert, replace
from .simplify import number


def run(kernel: ops.Kernel) -> None:
    for op in every(kernel):
        if isinstance(op, ops.Perform) and op.gathers and reads_constant(op):
            _gather(op)


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
    replace(op, [insert(op, read_columns(box, result.type))])


def _given(op: ops.Perform, parts: list[tuple[SSAValue | None, int]]) -> list[tuple[SSAValue | None, int]]:
    """A dim of one element has its index: 0 where none was said."""
    return [(insert(op, ops.constant(0, ops.I32)) if start is None and size == -1 else start, size) for start, size in parts]


def _number(base: SSAValue) -> SSAValue | None:
    """The scalar that a tile repeats; None if it is no such tile."""
    op = base.owner
    if isinstance(op, ops.Apply) and op.kind.repeats and is_scalar(op.arguments[0]):
        return op.arguments[0]
    return base if number(base) is not None and is_scalar(base) else None
