"""Alignment: scalars that are multiples of a number, views of panels, and accesses of tiles that can be vectorised."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import or_

from xdsl.ir import BlockArgument, SSAValue

from ...checking.fact_solver import Rule, ValueFlow
from ...ops.traits import SUM
from ...syntax.types import PANEL_BYTES
from ..ir import ops
from ..ir.ir_types import ElementT, SharedT, TensorT, TileT, is_scalar
from ..ir.machine_tiles import Line
from .value_flow import find_sources

Fits = Callable[[SSAValue], bool]
BLOCK_BYTES = 32  # of a row, two chunks that the swizzle keeps together


def is_multiple(value: SSAValue, n: int, fits: Fits | None = None) -> bool:
    """Return whether an i32 scalar is a multiple of `n`.

    Args:
        value: The scalar.
        n: The divisor.
        fits: Predicate of arithmetic that stays within 32 bits, required if `n` is no power of two.

    Raises: ValueError if `n` is no power of two and `fits` is missing.
    """
    if n & (n - 1) == 0:
        fits = None  # a number that wraps stays a multiple
    elif fits is None:
        raise ValueError(f"{n} is no power of two")
    flow = ValueFlow[SSAValue, bool](or_)  # optimistic: a value that depends on itself is a multiple until it is shown to be none
    flow.reach([value], partial(_describe_remainder, n, fits))
    return value not in flow.solve()


def _describe_remainder(n: int, fits: Fits | None, value: SSAValue) -> tuple[Rule[bool], Sequence[SSAValue]]:
    """Return how it follows that a value may be no multiple of `n`."""
    constant, op = ops.constant_value(value), value.owner
    if constant is not None:
        return _NEVER if int(constant) % n == 0 else _ALWAYS
    if (inputs := find_sources(value)) is not None:
        return _is_any, inputs
    if isinstance(value, BlockArgument):
        loop = value.block.parent_op()
        return (_is_any, [loop.start]) if isinstance(loop, ops.For) and loop.step.data % n == 0 else _ALWAYS
    if not isinstance(op, ops.Apply) or (fits is not None and not fits(value)):
        return _ALWAYS
    if op.kind.linear:
        return _is_any, op.arguments
    return (_are_all, op.arguments) if op.kind.multiplies else _ALWAYS


def _is_any(inputs: Sequence[bool | None]) -> bool | None:
    return any(inputs) or None


def _are_all(inputs: Sequence[bool | None]) -> bool | None:
    return all(inputs) or None


_NEVER: tuple[Rule[bool], Sequence[SSAValue]] = (lambda inputs: None), ()
_ALWAYS: tuple[Rule[bool], Sequence[SSAValue]] = (lambda inputs: True), ()


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


def split_sum(index: SSAValue) -> tuple[SSAValue, SSAValue] | None:
    """Return the terms of an index that is a number plus a tile, the number first; None for another index."""
    op = index.owner
    if not isinstance(op, ops.Apply) or op.kind.linear != SUM:
        return None
    tiles = [is_scalar(x) for x in op.arguments]
    return (
        (op.arguments[0], op.arguments[1])
        if tiles == [True, False]
        else (op.arguments[1], op.arguments[0])
        if tiles == [False, True]
        else None
    )


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


# ---- panels of shared memory
def begins_panel(view: SSAValue) -> bool:
    """Return whether the columns of a view are known to begin at a panel."""
    start, width = _find_columns(view)[0], _count_width(view)
    return start is None or is_multiple(start, width)


def lies_in_panel(view: SSAValue) -> bool:
    """Return whether a view is known to be an aligned half or quarter of a panel's columns: one xor with the swizzle reaches it."""
    start, size = _find_columns(view)
    assert isinstance(view.type, SharedT)
    parts = (BLOCK_BYTES, 2 * BLOCK_BYTES)
    return size * view.type.element.itemsize in parts and (start is None or is_multiple(start, size))


def _find_columns(view: SSAValue) -> tuple[SSAValue | None, int]:
    """Return the first column of a view, None for that of the array, and the number of columns."""
    assert isinstance(view.type, SharedT)
    if not isinstance(view.owner, ops.At):
        return None, int(view.type.sizes[-1])
    start, size = view.owner.parts[-1]
    return start, int(size)


def _count_width(view: SSAValue) -> int:
    assert isinstance(view.type, SharedT)
    return PANEL_BYTES // view.type.element.itemsize


__all__ = ["GROUP", "begins_panel", "find_first_column", "is_multiple", "lies_in_panel", "reads_pairs", "split_sum", "varies_by_column"]
