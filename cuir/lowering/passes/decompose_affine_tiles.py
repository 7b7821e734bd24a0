"""Turn tiles of column indices, numbers per row and scalars into lines, one operation an element.

An affine tile has rows[r] + slope * column in row r, such as a bias that is linear in the distance. In f32, the result
differs by two roundings of the largest term.

Affine tiles of i32 stay exact. Operations marked `exact` are left alone; an f32 line is made only of i32 tiles that do
not wrap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from xdsl.ir import SSAValue

from ...ops.traits import NEGATIVE, SUM
from ...syntax.types import F32, I32, DType
from ..analyses.ranges import analyse_ranges
from ..ir import constructors, ops
from ..ir.ir_types import TileT, broadcast, dtype_of, is_scalar, scalar, tile
from ..ir.ir_walk import every
from ..ir.machine_tiles import Line, is_constant_along_rows, line
from ..ir.ops import number
from . import affine_columns
from .rewriting import insert, replace

ROUNDING = True


@dataclass(frozen=True)
class _Line:
    """rows + slope * column; None: 0."""

    rows: SSAValue | None
    slope: SSAValue | None


def run(kernel: ops.Kernel, near: Callable[[SSAValue], bool] | None = None) -> None:
    """Replace tiles by lines.

    `near` returns whether an i32 value and its operands are far from the ends of 32 bits; it defaults to facts/ranges.
    """
    if near is None:
        near_ends = analyse_ranges(kernel).near_ends
        near = lambda value: not near_ends(value)  # noqa: E731
    for op in _iterate_tiles(kernel, F32):
        as_line = None
        if op.kind.converts and dtype_of(op.arguments[0]) == I32 and near(op.arguments[0]):
            as_line = _make_line_of_cast(op, op.arguments[0])
            if as_line is None and ops.kind_of(op.arguments[0]).magnitude:
                _replace_distance(op)
                continue
        elif _may_be_line(op) and any(isinstance(a.owner, Line) for a in op.arguments):
            as_line = _make_line_of_lines(op)
        _replace(op, as_line)
    for op in _iterate_tiles(kernel, I32):
        if _may_be_line(op):
            _replace(op, _make_line_of_indices(op.result, op), near(op.result))


def _may_be_line(op: ops.Apply) -> bool:
    """Return whether an operation may give a line of lines."""
    return bool(op.kind.linear) or op.kind.multiplies


def _iterate_tiles(kernel: ops.Kernel, dtype: DType) -> Iterator[ops.Apply]:
    """Yield the operations that make a tile with columns and feed no comparison."""
    for op in every(kernel):
        if not isinstance(op, ops.Apply) or op.exact is not None or not isinstance(op.result.type, TileT):
            continue
        if op.result.type.layout.has_accumulator_columns and dtype_of(op.result) == dtype:
            yield op


def _replace(op: ops.Apply, as_line: _Line | None, near: bool = False) -> None:
    if as_line is not None and as_line.slope is not None:
        replace(op, [insert(op, line(as_line.slope, as_line.rows, op.result.type, near))])


def _make_line_of_indices(value: SSAValue, at: ops.Apply) -> _Line | None:
    columns = affine_columns.decompose(value, at)
    if columns is None or columns.slope == 0:
        return None
    return _Line(columns.base, insert(at, ops.constant(columns.slope, I32)))


def _replace_distance(op: ops.Apply) -> None:
    """Replace the magnitude of an index tile, cast to floats, by that of a line."""
    magnitude = op.arguments[0].owner
    assert isinstance(magnitude, ops.Apply)
    as_line = _make_line_of_cast(op, magnitude.arguments[0])
    if as_line is not None and as_line.slope is not None:
        new_line = insert(op, line(as_line.slope, as_line.rows, op.result.type))
        replace(op, [insert(op, constructors.of_kind(magnitude, [new_line], op.result.type))])


def _make_line_of_cast(op: ops.Apply, index: SSAValue) -> _Line | None:
    """Return an index tile, cast to floats, as a line."""
    columns = affine_columns.decompose(index, op)
    if columns is None or columns.slope == 0:
        return None
    rows = columns.base
    if rows is not None:
        t = tile(F32, *rows.type.shape) if isinstance(rows.type, TileT) else scalar(F32)
        rows = insert(op, constructors.cast(rows, t))
    return _Line(rows, insert(op, ops.constant(float(columns.slope), F32)))


def _make_line_of_lines(op: ops.Apply) -> _Line | None:
    """Return a sum or product of lines and numbers per row as a line."""
    parts = [_to_line(a) for a in op.arguments]
    if any(p is None for p in parts):
        return None
    x, y = (parts * 2)[:2]
    assert x is not None and y is not None
    kind = op.kind
    if kind.linear == NEGATIVE:
        return _Line(_negate(op, x.rows), _negate(op, x.slope))
    if not kind.multiplies:
        return _Line(_add(op, x.rows, y.rows), _add(op, x.slope, y.slope))
    if x.slope is not None and y.slope is not None:
        return None
    if x.slope is None:
        x, y = y, x
    if y.rows is None or not is_scalar(y.rows):  # the slope differs from row to row
        return None
    return _Line(_multiply(op, x.rows, y.rows), _multiply(op, x.slope, y.rows))


def _to_line(value: SSAValue) -> _Line | None:
    if isinstance(value.owner, Line):
        return _Line(value.owner.rows, value.owner.slope)
    return _Line(value, None) if is_constant_along_rows(value) else None


def _add(op: ops.Apply, x: SSAValue | None, y: SSAValue | None) -> SSAValue | None:
    """Add or subtract, as the operation does."""
    if y is None:
        return x
    if x is None:
        return y if op.kind.linear == SUM else _negate(op, y)
    return insert(op, constructors.of_kind(op, [x, y], broadcast(F32, x, y)))


def _negate(op: ops.Apply, x: SSAValue | None) -> SSAValue | None:
    return None if x is None else insert(op, constructors.negate(x, broadcast(F32, x)))


def _multiply(op: ops.Apply, x: SSAValue | None, y: SSAValue | None) -> SSAValue | None:
    if x is None or y is None:
        return None
    return y if number(x) == 1 and is_scalar(x) else insert(op, constructors.multiply(x, y, broadcast(F32, x, y)))
