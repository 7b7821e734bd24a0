"""Tiles of single elements whose accesses can be vectorised, as they lie in pieces of a tensor's rows."""

from __future__ import annotations

from xdsl.ir import SSAValue

from ..ir import ops
from ..ir.ir_types import ElementT, TensorT, TileT, is_scalar
from ..ir.machine_tiles import Line
from .multiples import is_multiple

GROUP = 8  # columns that four threads hold, two each


def find_first_column(columns: SSAValue) -> tuple[SSAValue | None, bool] | None:
    """Decompose an index into the column and an offset.

    Returns (offset, fits): the offset is None for 0, and `fits` says that the sum stays within 32 bits. None for an
    index of another form.
    """
    op = columns.owner
    if isinstance(op, Line) and ops.constant_value(op.slope) == 1 and (op.rows is None or is_scalar(op.rows)):
        return op.rows, op.near is not None
    return (None, True) if ops.kind_of(columns).index_of == "column" else None


def varies_by_column(value: SSAValue) -> bool:
    """Return whether an index differs from column to column."""
    return isinstance(value.type, TileT) and not value.type.layout.is_constant_along_rows


def reads_pairs(op: ops.Perform) -> bool:
    """Return whether a gather of 4-byte elements reads two neighbours at once.

    It does at even columns of scratch tensors, which are contiguous and aligned.
    """
    t = op.outputs[0].type if op.gathers else None
    if not isinstance(t, TileT) or not t.layout.is_accumulator or t.shape[1] % GROUP or t.element.itemsize != 4:
        return False
    place = op.arg("place")
    at = place.owner
    if not isinstance(at, ops.At) or not isinstance(place.type, ElementT) or not isinstance(at.array.owner, ops.Tensor):
        return False
    tensor, indices = at.array.owner, list(at.starts)
    kind = tensor.result.type
    last = kind.sizes[-1] if isinstance(kind, TensorT) else None
    column_offset = find_first_column(indices[-1])
    if tensor.scratch is None or not isinstance(last, int) or last % 2 or column_offset is None or any(map(varies_by_column, indices[:-1])):
        return False
    return column_offset[0] is None or is_multiple(column_offset[0], 2)


__all__ = ["GROUP", "find_first_column", "reads_pairs", "varies_by_column"]
