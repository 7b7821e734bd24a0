"""Turn gathers of consecutive elements along the columns into loads of a box, an element per lane.

Eight lanes of a warp need the element of the same column. With this pass, one lane loads the element and shares it
with the others.

That lane loads it coalesced with its neighbours and computes functions of it. The kernel does not write the tensor.
Exact: an index that wraps lies outside of the tensor, as before.
"""

from __future__ import annotations

from collections.abc import Collection

from xdsl.ir import Operation, SSAValue

from ...syntax.types import F32, I32
from ..analyses.memory import is_memory_effect_free
from ..ir import constructors, ops
from ..ir.ir_types import TensorT, TileT, dtype_of, is_scalar, tile
from ..ir.ir_walk import every
from ..ir.machine_tiles import ConvertLayout, convert_layout, read_columns
from ..ir.ops import number
from ..layouts.tile_layouts import BY_LANE
from . import affine_columns
from .rewriting import insert, replace

EXCHANGE_COST_THRESHOLD = 4  # instructions of a function; a cheaper one is faster to recompute than to exchange


def run(kernel: ops.Kernel) -> None:
    """Rewrite gathers, then compute functions of them by lanes where that is profitable."""
    for op in every(kernel):
        if isinstance(op, ops.Perform) and op.gathers and is_memory_effect_free(op):
            _rewrite_gather(op)
    functions: dict[ops.Apply, None] = {}
    for op in every(kernel):
        if isinstance(op, ops.Apply) and _is_lane_function(op, functions):
            functions[op] = None
    profitable: set[Operation] = set()
    for function in reversed(functions):  # readers come after their operands
        if _is_profitable(function, functions, profitable):
            profitable.add(function)
    for function in functions:
        if function in profitable:
            _compute_by_lanes(function)


def _rewrite_gather(op: ops.Perform) -> None:
    """Rewrite one gather, if its indices are consecutive along the columns."""
    result, place = op.results[0], op.arg("place").owner
    assert isinstance(place, ops.At)
    if not isinstance(result.type, TileT) or not result.type.layout.is_per_column:
        return
    parts: list[tuple[SSAValue | None, int]] = []
    for start, _ in place.parts:
        if start is None or is_scalar(start):
            parts.append((start, -1))
            continue
        columns = affine_columns.decompose(start, op)
        if columns is None or columns.slope not in (0, 1):
            return
        base = columns.base
        if base is not None and not is_scalar(base):
            base = _unwrap_scalar(base)
            if base is None:
                return
        parts.append((base, result.type.shape[1] if columns.slope else -1))
    if [size for _, size in parts if size != -1] != [result.type.shape[1]]:
        return
    dtype, cols = result.type.dtype, result.type.cols
    box = insert(op, ops.at(place.array, _with_indices(op, parts), TensorT(dtype, ops.ArrayAttr([cols]))))
    replace(op, [insert(op, convert_layout(insert(op, read_columns(box))))])


def _is_lane_function(op: ops.Apply, functions: Collection[Operation]) -> bool:
    """Return whether an operation is a function of numbers that lanes hold.

    `functions`: earlier operations that are.
    """
    t = op.result.type
    if not isinstance(t, TileT) or not t.layout.is_per_column or t.element not in (F32, I32) or op.entry.reduces:
        return False
    tiles = [a.owner for a in op.arguments if not is_scalar(a)]
    return bool(tiles) and all(isinstance(x, ConvertLayout) or x in functions for x in tiles)


def _is_profitable(op: ops.Apply, functions: Collection[Operation], profitable: Collection[Operation]) -> bool:
    """Return whether an operation is worth computing by lanes.

    It is if it, or a function of its result (in `worth`), costs more than an exchange, or if only such functions need
    its operands, too.
    """
    if op.kind.cost >= EXCHANGE_COST_THRESHOLD or any(use.operation in profitable for use in op.result.uses):
        return True
    other_readers = {use.operation for a in op.arguments if not is_scalar(a) for use in a.uses} - {op}
    return all(isinstance(x, ops.Apply) and x in functions and x.kind.cost >= EXCHANGE_COST_THRESHOLD for x in other_readers)


def _compute_by_lanes(op: ops.Apply) -> None:
    """Compute an operation by lanes, and exchange its result."""
    operands = [a.owner.x if isinstance(a.owner, ConvertLayout) else a for a in op.arguments]
    by_lane = insert(op, constructors.of_kind(op, operands, tile(dtype_of(op.result), *op.result.type.shape, BY_LANE)))  # type: ignore[attr-defined]
    by_lane.name_hint = op.result.name_hint
    replace(op, [insert(op, convert_layout(by_lane))])


def _with_indices(op: ops.Perform, parts: list[tuple[SSAValue | None, int]]) -> list[tuple[SSAValue | None, int]]:
    """Return the parts with an index for each dim of one element: 0 where it has none."""
    return [(insert(op, ops.constant(0, ops.I32)) if start is None and size == -1 else start, size) for start, size in parts]


def _unwrap_scalar(base: SSAValue) -> SSAValue | None:
    """Return the scalar that a tile repeats; None if it is no such tile."""
    op = base.owner
    if isinstance(op, ops.Apply) and op.kind.repeats and is_scalar(op.arguments[0]):
        return op.arguments[0]
    return base if number(base) is not None and is_scalar(base) else None
