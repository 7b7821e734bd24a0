"""Keep row sums as partial sums while they are used linearly; a row's four threads add them on a read.

Each thread sums its own elements of a row, and the four threads of the row combine their sums after the loop. The pass
thus changes the order of additions.

Each definition must be a row's sum, zeros, a sum or difference of partial sums, a partial sum times or over a whole
number per row, or a select between such.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from operator import or_

from xdsl.ir import SSAValue

from ...checking.fact_solver import ValueFlow, reach
from ...syntax.types import F32
from ..analyses.value_flow import find_targets
from ..ir import constructors, ops, row_parts
from ..ir.ir_types import TileT, dtype_of, tile
from ..ir.ir_walk import every
from ..ir.ops import number
from ..layouts.tile_layouts import PARTIAL
from .rewriting import insert, replace
from .webs import iterate_joins

ROUNDING = True


def run(kernel: ops.Kernel) -> None:
    """Rewrite the sums of each role."""
    for role in kernel.roles:
        _rewrite_role(role)


def _rewrite_role(role: ops.Role) -> None:
    flows = dict(iterate_joins(role))
    values = [v for v in [*flows, *(r for op in every(role) if isinstance(op, ops.Apply) for r in op.results)] if _is_per_row(v)]
    parts = _find_linear(values, flows)
    while products := {v for v in parts if _is_nonlinear(v, parts)}:
        parts = _find_linear(parts - products, flows)
    parts = _select_needed(parts, flows)
    ordered = [v for v in values if v in parts]  # the program's order, so that its text is the same in every process
    for value in ordered:
        _sum_on_read(value, parts)
    for value in ordered:
        _convert_to_parts(value, parts)


def _find_linear(values: Collection[SSAValue], flows: dict[SSAValue, list[SSAValue]]) -> set[SSAValue]:
    """Return the most values that are linear in one another."""
    flow = ValueFlow[SSAValue, bool](or_)  # true of a value that is not

    def put(value: SSAValue) -> None:
        sources = [v for v in flows.get(value, _list_inputs(value)) if v in values]

        def judge(inputs: Sequence[bool | None]) -> bool | None:
            return not _is_linear(value, {v for v, lost in zip(sources, inputs) if not lost}, flows) or None

        flow.put(value, judge, sources)

    for value in values:
        put(value)
    return set(values) - flow.solve().keys()


def _list_inputs(value: SSAValue) -> Sequence[SSAValue]:
    return value.owner.arguments if isinstance(value.owner, ops.Apply) else ()


def _is_per_row(value: SSAValue) -> bool:
    t = value.type
    return isinstance(t, TileT) and t.layout.is_per_row and dtype_of(value) == F32


def _is_row_sum(value: SSAValue) -> bool:
    return isinstance(value.owner, ops.Apply) and value.owner.entry.sums and value.owner.entry.reduces


def _select_needed(parts: set[SSAValue], flows: dict[SSAValue, list[SSAValue]]) -> set[SSAValue]:
    """Return the values in parts that a row's sum reaches, with their operands; others are only zeros."""
    into: dict[SSAValue, list[SSAValue]] = {}
    for value in parts:
        for operand in _list_operands(value, flows):
            into.setdefault(operand, []).append(value)
    live_sums = reach(filter(_is_row_sum, parts), lambda v: into.get(v, ()))
    return reach(live_sums, lambda v: parts.intersection(_list_operands(v, flows)))


def _list_operands(value: SSAValue, flows: dict[SSAValue, list[SSAValue]]) -> list[SSAValue]:
    if value in flows:
        return flows[value]
    op = value.owner
    if not isinstance(op, ops.Apply):
        return []
    kind = op.kind
    if kind.linear or kind.multiplies or kind.divides_floats:
        return list(op.arguments)
    return list(op.arguments[1:]) if kind.chooses else []


def _is_linear(value: SSAValue, parts: set[SSAValue], flows: dict[SSAValue, list[SSAValue]]) -> bool:
    if value in flows:
        return all(_is_part(v, parts) for v in flows[value])
    op = value.owner
    assert isinstance(op, ops.Apply)
    if _is_row_sum(value):
        t = op.arguments[0].type
        return isinstance(t, TileT) and t.layout.is_accumulator
    if op.exact is not None:
        return False
    kind = op.kind
    if kind.linear:
        return all(_is_part(a, parts) for a in op.arguments)
    if kind.multiplies:
        return any(_is_part(a, parts) for a in op.arguments)
    if kind.divides_floats:
        return _is_part(op.arguments[0], parts)
    return kind.chooses is not None and all(_is_part(a, parts) for a in op.arguments[1:])


def _is_nonlinear(value: SSAValue, parts: set[SSAValue]) -> bool:
    """Return whether a product, quotient or choice has an operand in parts that makes it nonlinear."""
    op = value.owner
    if not isinstance(op, ops.Apply):
        return False
    kind = op.kind
    if kind.chooses:
        return op.arguments[0] in parts
    return (kind.multiplies and all(a in parts for a in op.arguments)) or (kind.divides_floats and op.arguments[1] in parts)


def _is_part(value: SSAValue, parts: set[SSAValue]) -> bool:
    """Return whether a value is in parts, or is zero, whose parts are zero."""
    return value in parts or number(value) == 0


def _sum_on_read(value: SSAValue, parts: set[SSAValue]) -> None:
    for use in tuple(value.uses):
        op = use.operation
        into = find_targets(use) or ([op.result] if isinstance(op, ops.Apply) else [])
        if any(v in parts for v in into):
            continue
        row_sum = insert(op, row_parts.quad_sum(value))
        row_sum.name_hint = value.name_hint
        op.operands[use.index] = row_sum


def _convert_to_parts(value: SSAValue, members: set[SSAValue]) -> None:
    """Give a value the type of parts, and parts of zero where it is defined as zeros."""
    t = value.type
    assert isinstance(t, TileT)
    parts = tile(t.element, t.shape[0], 1, PARTIAL)
    for use in tuple(value.uses):
        _convert_zeros(use.operation, parts, members)
    if _is_row_sum(value):
        op = value.owner
        assert isinstance(op, ops.Apply)
        new = row_parts.row_part(op.arguments[0])
        insert(op, new)
        replace(op, new.results)
        return
    value._type = parts
    if isinstance(value.owner, ops.Apply):
        _convert_zero_operands(value.owner, parts)


def _convert_zeros(op: object, parts: TileT, members: set[SSAValue]) -> None:
    """Replace zeros that meet parts at the end of a branch or in a loop by parts of zero."""
    if isinstance(op, ops.Yield):
        parent = op.parent_op()
        assert parent is not None
        for region in parent.regions:
            end = region.block.last_op
            assert isinstance(end, ops.Yield)
            for i, result in enumerate(parent.results):
                if (
                    result in members
                    and isinstance(end.values[i].type, TileT)
                    and number(end.values[i]) == 0
                    and end.values[i].type != parts
                ):
                    end.operands[i] = _insert_zero_parts(end, parts)
        if isinstance(parent, ops.Loop):
            _convert_zeros(parent, parts, members)
    elif isinstance(op, ops.Loop):
        first = len(op.operands) - len(op.carried)
        for i, result in enumerate(op.results):
            start = op.operands[first + i]
            if result in members and number(start) == 0 and start.type != parts:
                op.operands[first + i] = _insert_zero_parts(op, parts)


def _convert_zero_operands(op: ops.Apply, parts: TileT) -> None:
    for i, a in enumerate(op.arguments):
        if isinstance(a.type, TileT) and a.type.layout.is_per_row and number(a) == 0:
            op.operands[i] = _insert_zero_parts(op, parts)


def _insert_zero_parts(at: object, parts: TileT) -> SSAValue:
    assert isinstance(at, (ops.Yield, ops.Loop, ops.Apply))
    return insert(at, constructors.full(insert(at, ops.constant(0.0, F32)), parts))
