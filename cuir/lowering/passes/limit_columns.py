"""Turn comparisons of indices into limits on the column.

The comparison `q - k <= w` becomes `q - w <= k`, so each element compares its column k with one number per row.

Limits in the same direction that are operands of & or | become one. This takes an i32 tile base + s * column with
s = 1 or -1. Sums of operands of unknown range (analyses/ranges) saturate: a limit beyond the ends of 32 bits is none.
"""

from __future__ import annotations

from collections.abc import Callable

from xdsl.ir import Operation, SSAValue

from ...ops.traits import AT_MOST, BELOW, LESS
from ...syntax.types import BOOL, I32
from ..analyses.ranges import analyse_ranges
from ..analyses.value_flow import walk_expression
from ..ir import constructors, ops
from ..ir.ir_types import broadcast, dtype_of, is_tile
from ..ir.ir_walk import every, iterate_joined
from ..ir.row_parts import limit_of
from .affine_columns import Affine, decompose, is_limit, subtract_bases
from .rewriting import insert, replace


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
        return insert(at, limit_of(y, x, plus, broadcast(I32, y, x), high.slope == 1))
    bound = _materialise(subtract_bases(low.base, high.base, at), at)
    if not plus:
        return bound
    more = insert(at, ops.constant(plus, I32))
    return insert(at, constructors.add(bound, more, broadcast(I32, bound, more)))


def _materialise(base: SSAValue | None, at: Operation) -> SSAValue:
    return insert(at, ops.constant(0, I32)) if base is None else base


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
            merged = insert(op, extreme(merged, bound, broadcast(I32, merged, bound)))
        t = broadcast(BOOL, *limits)
        limit_op = insert(op, constructors.less(columns, merged, t) if below else constructors.at_most(merged, columns, t))
        first, *remaining = limits
        parts = [limit_op if p is first else p for p in parts if p not in remaining]
    result = parts[0]
    for part in parts[1:]:
        result = insert(op, constructors.of_kind(op, [result, part], broadcast(BOOL, result, part)))
    if result.type == op.result.type:
        replace(op, [result])
