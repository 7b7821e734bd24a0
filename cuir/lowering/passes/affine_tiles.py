"""Tiles made of column indices, numbers a row and scalars by sums and products become lines: rows[r] + slope * column, one operation an element.

A bias linear in the distance is one. i32 lines are exact. An f32 line differs from what was written by two roundings of its largest term, so what a
comparison follows from (`exact`) stays as it is; and it is made of i32 tiles that do not wrap alone (`near`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from xdsl.ir import SSAValue

from ...ops.traits import NEGATIVE, SUM
from ...syntax.types import F32, I32, DType
from ..facts.ranges import ranges
from ..ir import make, ops
from ..ir.machine_tiles import Line, alike_along_rows, line
from ..ir.types import ScalarT, TileT, dtype_of, is_scalar, scalar, tile
from ..ir.walk import every
from . import affine_columns
from .rewriting import insert, replace
from .simplify import number

ROUNDING = True


@dataclass(frozen=True)
class _Line:
    """rows + slope * column; None: 0."""

    rows: SSAValue | None
    slope: SSAValue | None


def run(kernel: ops.Kernel, near: Callable[[SSAValue], bool] | None = None) -> None:
    """`near`: whether an i32 value is far from the ends of 32 bits, and so is what it is made of; as facts/ranges says, if it is not given."""
    if near is None:
        near_ends = ranges(kernel).near_ends
        near = lambda value: not near_ends(value)  # noqa: E731
    for op in _tiles(kernel, F32):
        as_line = None
        if op.kind.converts and dtype_of(op.arguments[0]) == I32 and near(op.arguments[0]):
            as_line = _converted(op, op.arguments[0])
            if as_line is None and ops.kind_of(op.arguments[0]).magnitude:
                _distance(op)
                continue
        elif _of_lines(op) and any(isinstance(a.owner, Line) for a in op.arguments):
            as_line = _combined(op)
        _replace(op, as_line)
    for op in _tiles(kernel, I32):
        if _of_lines(op):
            _replace(op, _of_indices(op.result, op), near(op.result))


def _of_lines(op: ops.Apply) -> bool:
    """Whether it may give a line of lines."""
    return bool(op.kind.linear) or op.kind.multiplies


def _tiles(kernel: ops.Kernel, dtype: DType) -> Iterator[ops.Apply]:
    """The operations that make a tile with columns, and from which no comparison follows."""
    for op in every(kernel):
        if not isinstance(op, ops.Apply) or op.exact is not None or not isinstance(op.result.type, TileT):
            continue
        if op.result.type.layout.data in ("full", "columns") and dtype_of(op.result) == dtype:
            yield op


def _replace(op: ops.Apply, as_line: _Line | None, near: bool = False) -> None:
    if as_line is not None and as_line.slope is not None:
        replace(op, [insert(op, line(as_line.slope, as_line.rows, op.result.type, near))])


def _of_indices(value: SSAValue, at: ops.Apply) -> _Line | None:
    columns = affine_columns.affine(value, at)
    if columns is None or columns.slope == 0:
        return None
    return _Line(columns.base, insert(at, ops.constant(columns.slope, I32)))


def _distance(op: ops.Apply) -> None:
    """The magnitude of an index tile as floats is that of a line."""
    magnitude = op.arguments[0].owner
    assert isinstance(magnitude, ops.Apply)
    as_line = _converted(op, magnitude.arguments[0])
    if as_line is not None and as_line.slope is not None:
        made = insert(op, line(as_line.slope, as_line.rows, op.result.type))
        replace(op, [insert(op, make.of_kind(magnitude, [made], op.result.type))])


def _converted(op: ops.Apply, index: SSAValue) -> _Line | None:
    """An index tile as floats."""
    columns = affine_columns.affine(index, op)
    if columns is None or columns.slope == 0:
        return None
    rows = columns.base
    if rows is not None:
        t = tile(F32, *rows.type.shape) if isinstance(rows.type, TileT) else scalar(F32)
        rows = insert(op, make.cast(rows, t))
    return _Line(rows, insert(op, ops.constant(float(columns.slope), F32)))


def _combined(op: ops.Apply) -> _Line | None:
    """A sum or product of lines and numbers a row."""
    parts = [_part(a) for a in op.arguments]
    if any(p is None for p in parts):
        return None
    x, y = (parts * 2)[:2]
    assert x is not None and y is not None
    of = op.kind
    if of.linear == NEGATIVE:
        return _Line(_negated(op, x.rows), _negated(op, x.slope))
    if not of.multiplies:
        return _Line(_sum(op, x.rows, y.rows), _sum(op, x.slope, y.slope))
    if x.slope is not None and y.slope is not None:
        return None
    if x.slope is None:
        x, y = y, x
    if y.rows is None or not is_scalar(y.rows):  # each row has a slope of its own
        return None
    return _Line(_product(op, x.rows, y.rows), _product(op, x.slope, y.rows))


def _part(value: SSAValue) -> _Line | None:
    if isinstance(value.owner, Line):
        return _Line(value.owner.rows, value.owner.slope)
    return _Line(value, None) if alike_along_rows(value) else None


def _sum(op: ops.Apply, x: SSAValue | None, y: SSAValue | None) -> SSAValue | None:
    """x + y or x - y, as the operation is."""
    if y is None:
        return x
    if x is None:
        return y if op.kind.linear == SUM else _negated(op, y)
    return insert(op, make.of_kind(op, [x, y], type_of_rows(x, y)))


def _negated(op: ops.Apply, x: SSAValue | None) -> SSAValue | None:
    return None if x is None else insert(op, make.negate(x, type_of_rows(x)))


def _product(op: ops.Apply, x: SSAValue | None, y: SSAValue | None) -> SSAValue | None:
    if x is None or y is None:
        return None
    return y if number(x) == 1 and is_scalar(x) else insert(op, make.multiply(x, y, type_of_rows(x, y)))


def type_of_rows(*operands: SSAValue) -> TileT | ScalarT:
    """The type of an operation on numbers a row."""
    shapes = [o.type.shape for o in operands if isinstance(o.type, TileT)]
    return tile(F32, max(r for r, _ in shapes), 1) if shapes else scalar(F32)
