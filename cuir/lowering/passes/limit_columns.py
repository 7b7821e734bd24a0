"""Turn comparisons of indices into limits on the column.

The comparison `q - k <= w` becomes `q - w <= k`, so each element compares its column k with one number per row.

Limits in the same direction that are operands of & or | become one. This takes an i32 tile base + s * column with
s = 1 or -1. Sums of operands of unknown range (analyses/ranges) saturate: a limit beyond the ends of 32 bits is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from xdsl.ir import Operation, SSAValue

from ...ops.traits import AT_MOST, BELOW, DIFFERENCE, LESS, NEGATIVE, SUM
from ...syntax.types import BOOL, I32
from ..analyses.ranges import analyse_ranges
from ..analyses.value_flow import walk_expression
from ..ir import constructors, ops
from ..ir.ir_types import ScalarT, TileT, dtype_of, is_tile, scalar, tile
from ..ir.ir_walk import every
from ..ir.machine_tiles import Line
from ..ir.row_parts import limit_of
from .rewriting import insert, replace
from .simplify import number


@dataclass(frozen=True)
class Affine:
    """base + slope * column; base is a scalar or a tile of a number per row, None for 0."""

    base: SSAValue | None
    slope: int


def run(kernel: ops.Kernel) -> None:
    """Rewrite comparisons to limits, and merge limits that are combined."""
    near_ends = analyse_ranges(kernel).near_ends
    for op in every(kernel):
        if op.parent is not None and isinstance(op, ops.Apply):
            kind = op.kind
            if kind.compares in BELOW and is_tile(op.result) and dtype_of(op.arguments[0]) == I32:
                _compare(op, near_ends)
            elif kind.decided_by is not None and is_tile(op.result) and dtype_of(op.result) == BOOL:
                _merge_limits(op)


def decompose(value: SSAValue, at: Operation, cache: dict[SSAValue, Affine | None] | None = None) -> Affine | None:
    """Decompose a value into such a sum, whose operations are inserted before `at`.

    Args:
        value: An i32 scalar or tile.
        at: The place of new operations.
        cache: Values decomposed at this place.

    Returns: None if the value has another form.
    """
    cache = {} if cache is None else cache
    if value not in cache:
        cache[value] = _decompose(value, at, cache)
    return cache[value]


def _decompose(value: SSAValue, at: Operation, cache: dict[SSAValue, Affine | None]) -> Affine | None:
    t = value.type
    if not isinstance(t, TileT) or t.layout.is_constant_along_rows:
        return Affine(None, 0) if number(value) == 0 else Affine(value, 0)
    op = value.owner
    if isinstance(op, Line):
        slope = ops.constant_value(op.slope)
        return Affine(op.rows, slope) if isinstance(slope, int) else None
    if not isinstance(op, ops.Apply):
        return None
    kind = op.kind
    if kind.index_of == "column":
        return Affine(None, 1)
    if kind.repeats:
        return Affine(op.arguments[0], 0)
    if not (kind.linear or kind.multiplies):
        return None
    parts = [decompose(a, at, cache) for a in op.arguments]
    if any(p is None for p in parts):
        return None
    operands = [p for p in parts if p is not None]
    if kind.linear == NEGATIVE:
        return Affine(_negate(operands[0].base, at), -operands[0].slope)
    x, y = operands
    if kind.linear == SUM:
        return Affine(_add(x.base, y.base, at), x.slope + y.slope)
    if kind.linear == DIFFERENCE:
        return Affine(_subtract(x.base, y.base, at), x.slope - y.slope)
    for a, b in ((x, y), (y, x)):
        if b.slope == 0 and b.base is not None and (n := number(b.base)) is not None:
            return Affine(_multiply(a.base, b.base, at), a.slope * int(n))
    return None if x.slope or y.slope else Affine(_multiply(x.base, y.base, at), 0)


# ---- operations on bases: scalars, or tiles of the operands' joint shape; None is 0
def _add(x: SSAValue | None, y: SSAValue | None, at: Operation) -> SSAValue | None:
    return y if x is None else x if y is None else insert(at, constructors.add(x, y, _make_joint_type(x, y)))


def _subtract(x: SSAValue | None, y: SSAValue | None, at: Operation) -> SSAValue | None:
    return x if y is None else _negate(y, at) if x is None else insert(at, constructors.subtract(x, y, _make_joint_type(x, y)))


def _negate(x: SSAValue | None, at: Operation) -> SSAValue | None:
    return None if x is None else insert(at, constructors.negate(x, _make_joint_type(x)))


def _multiply(x: SSAValue | None, y: SSAValue | None, at: Operation) -> SSAValue | None:
    return None if x is None or y is None else insert(at, constructors.multiply(x, y, _make_joint_type(x, y)))


def _compare(op: ops.Apply, near_ends: Callable[[SSAValue], bool]) -> None:
    """Replace a < b or a <= b with slopes that differ by one by `column < bound` or `bound <= column`."""
    if is_limit(op):
        return
    cache: dict[SSAValue, Affine | None] = {}
    a, b = (decompose(x, op, cache) for x in op.arguments)
    if a is None or b is None or abs(a.slope - b.slope) != 1:
        return
    columns = next(v for x in op.arguments for v in walk_expression(x) if ops.kind_of(v).index_of == "column")
    if a.slope > b.slope:  # base_a + column < base_b
        bound = _compute_bound(b, a, int(op.kind.compares == AT_MOST), near_ends(op.arguments[0]), op)
        new = constructors.less(columns, bound, op.result.type)
    else:  # base_a < base_b + column
        bound = _compute_bound(a, b, int(op.kind.compares == LESS), near_ends(op.arguments[1]), op)
        new = constructors.at_most(bound, columns, op.result.type)
    replace(op, [insert(op, new)])


def _compute_bound(low: Affine, high: Affine, plus: int, near_ends: bool, at: Operation) -> SSAValue:
    """Compute `low` less `high` without their columns, plus `plus`.

    It saturates where `high` may be any number.
    """
    if near_ends:
        y, x = _materialise(low.base, at), _materialise(high.base, at)
        return insert(at, limit_of(y, x, plus, _make_joint_type(y, x), high.slope == 1))
    bound = _materialise(_subtract(low.base, high.base, at), at)
    if not plus:
        return bound
    more = insert(at, ops.constant(plus, I32))
    return insert(at, constructors.add(bound, more, _make_joint_type(bound, more)))


def _make_joint_type(*operands: SSAValue) -> TileT | ScalarT:
    """Return the type of an operation on bases: a scalar, or a tile of the operands' joint shape."""
    shapes = [o.type.shape for o in operands if isinstance(o.type, TileT)]
    return tile(I32, max(r for r, _ in shapes), max(c for _, c in shapes)) if shapes else scalar(I32)


def _materialise(base: SSAValue | None, at: Operation) -> SSAValue:
    return insert(at, ops.constant(0, I32)) if base is None else base


def is_limit(op: ops.Apply) -> bool:
    """Return whether a comparison is `column < bound` or `bound <= column` with one bound for all columns."""
    holds = op.kind.compares
    if holds not in BELOW:
        return False
    columns, bound = op.arguments if holds == LESS else op.arguments[::-1]
    return ops.kind_of(columns).index_of == "column" and not _varies_by_column(bound)


def _varies_by_column(value: SSAValue) -> bool:
    return isinstance(value.type, TileT) and value.type.layout.has_accumulator_columns


def _merge_limits(op: ops.Apply) -> None:
    """Merge the limits of one direction among all operands that & (or |) joins."""
    parts = list(iterate_joined(op, op.op))
    groups: dict[tuple[SSAValue, bool], list[SSAValue]] = {}
    for part in parts:
        limit = part.owner
        if isinstance(limit, ops.Apply) and is_limit(limit):
            below = limit.kind.compares == LESS
            groups.setdefault((limit.arguments[0 if below else 1], below), []).append(part)
    if all(len(limits) == 1 for limits in groups.values()):
        return
    for (columns, below), limits in groups.items():
        if len(limits) == 1:
            continue
        # both of two upper limits hold below the least
        extreme = constructors.least if below == (op.kind.decided_by is False) else constructors.greatest
        merged, *bounds = (limit.owner.operands[1 if below else 0] for limit in limits)  # type: ignore[union-attr]
        for bound in bounds:
            merged = insert(op, extreme(merged, bound, _make_joint_type(merged, bound)))
        t = truth_type(limits)
        limit_op = insert(op, constructors.less(columns, merged, t) if below else constructors.at_most(merged, columns, t))
        first, *remaining = limits
        parts = [limit_op if p is first else p for p in parts if p not in remaining]
    result = parts[0]
    for part in parts[1:]:
        result = insert(op, constructors.of_kind(op, [result, part], truth_type([result, part])))
    if result.type == op.result.type:
        replace(op, [result])


def truth_type(values: Sequence[SSAValue]) -> TileT:
    """Return the type of a combination of truth values, of which at least one is a tile."""
    shapes = [v.type.shape for v in values if isinstance(v.type, TileT)]
    return tile(BOOL, max(r for r, _ in shapes), max(c for _, c in shapes))


def iterate_joined(op: ops.Apply, name: str) -> Iterator[SSAValue]:
    """Yield the truth values that a tree of one operation joins, each once.

    Inner operations belong to the tree if it alone reads them.
    """
    parts: dict[SSAValue, None] = {}
    for value in op.arguments:
        inner = value.owner
        is_inner = isinstance(inner, ops.Apply) and inner.op == name and inner.parent is op.parent and len(list(value.uses)) == 1
        parts |= dict.fromkeys(iterate_joined(inner, name) if is_inner else [value])  # type: ignore[arg-type]
    yield from parts


__all__ = ["Affine", "decompose", "is_limit", "iterate_joined", "run", "truth_type"]
