"""Sums of rows stay in parts as long as what is made of them is linear: the four threads of a row add their parts when the sum itself is read.

A number a row is kept so if, wherever it is made, it is a row's sum, zeros, a sum or difference of such numbers, such a number times or over a whole one, or a
choice between such ones by a whole condition. The order of additions changes, so the last bits of such a sum do.
"""

from __future__ import annotations

from xdsl.ir import SSAValue

from ...syntax.types import F32
from ..facts.flow import targets
from ..ir import make, ops, rows
from ..ir.types import TileT, dtype_of, tile
from ..ir.walk import every
from .rewriting import insert, replace
from .simplify import number
from .webs import joins

ROUNDING = True


def run(kernel: ops.Kernel) -> None:
    for role in kernel.roles:
        _role(role)


def _role(role: ops.Role) -> None:
    flows = dict(joins(role))
    values = [v for v in [*flows, *(r for op in every(role) if isinstance(op, ops.Apply) for r in op.results)] if _of_rows(v)]
    kept = set(values)
    while True:
        while (linear := {v for v in kept if _linear(v, kept, flows)}) != kept:
            kept = linear
        products = {v for v in kept if _of_parts(v, kept)}
        if not products:
            break
        kept -= products
    kept = _needed(kept, flows)
    ordered = [v for v in values if v in kept]  # the program's order, so that its text is the same in every process
    for value in ordered:
        _summed_where_read(value, kept)
    for value in ordered:
        _parted(value, kept)


def _of_rows(value: SSAValue) -> bool:
    t = value.type
    return isinstance(t, TileT) and t.layout.data == "rows" and dtype_of(value) == F32


def _sum(value: SSAValue) -> bool:
    return isinstance(value.owner, ops.Apply) and value.owner.entry.sums and value.owner.entry.reduces


def _needed(kept: set[SSAValue], flows: dict[SSAValue, list[SSAValue]]) -> set[SSAValue]:
    """Of the values that may be kept in parts those that a row's sum reaches, and what these are made of: the others are made of zeros alone."""
    fed: set[SSAValue] = set()
    while (more := {v for v in kept if v in fed or _sum(v) or any(o in fed for o in _operands(v, flows))}) != fed:
        fed = more
    left = list(fed)
    while left:
        for operand in _operands(left.pop(), flows):
            if operand in kept and operand not in fed:
                fed.add(operand)
                left.append(operand)
    return fed


def _operands(value: SSAValue, flows: dict[SSAValue, list[SSAValue]]) -> list[SSAValue]:
    if value in flows:
        return flows[value]
    op = value.owner
    if not isinstance(op, ops.Apply):
        return []
    of = op.kind
    if of.linear or of.multiplies or of.divides_floats:
        return list(op.arguments)
    return list(op.arguments[1:]) if of.chooses else []


def _linear(value: SSAValue, kept: set[SSAValue], flows: dict[SSAValue, list[SSAValue]]) -> bool:
    if value in flows:
        return all(_part(v, kept) for v in flows[value])
    op = value.owner
    assert isinstance(op, ops.Apply)
    if _sum(value):
        t = op.arguments[0].type
        return isinstance(t, TileT) and t.layout.data == "full"
    if op.exact is not None:
        return False
    of = op.kind
    if of.linear:
        return all(_part(a, kept) for a in op.arguments)
    if of.multiplies:
        return any(_part(a, kept) for a in op.arguments)
    if of.divides_floats:
        return _part(op.arguments[0], kept)
    return of.chooses is not None and all(_part(a, kept) for a in op.arguments[1:])


def _of_parts(value: SSAValue, kept: set[SSAValue]) -> bool:
    """Whether a product or quotient is one of two numbers that are both kept in parts: that is not linear."""
    op = value.owner
    if not isinstance(op, ops.Apply):
        return False
    of = op.kind
    if of.chooses:
        return op.arguments[0] in kept
    return (of.multiplies and all(a in kept for a in op.arguments)) or (of.divides_floats and op.arguments[1] in kept)


def _part(value: SSAValue, kept: set[SSAValue]) -> bool:
    """Whether a value is kept in parts, or is zero, whose parts are zero."""
    return value in kept or number(value) == 0


def _summed_where_read(value: SSAValue, kept: set[SSAValue]) -> None:
    for use in tuple(value.uses):
        op = use.operation
        into = targets(use) or ([op.result] if isinstance(op, ops.Apply) else [])
        if any(v in kept for v in into):
            continue
        whole = insert(op, rows.quad_sum(value))
        whole.name_hint = value.name_hint
        op.operands[use.index] = whole


def _parted(value: SSAValue, kept: set[SSAValue]) -> None:
    """Gives a value the type of parts, and parts of zero where it is made of zeros."""
    t = value.type
    assert isinstance(t, TileT)
    parts = tile(t.element, t.shape[0], 1, "partial")
    for use in tuple(value.uses):
        _zeros_beside(use.operation, parts, kept)
    if _sum(value):
        op = value.owner
        assert isinstance(op, ops.Apply)
        new = rows.row_part(op.arguments[0])
        insert(op, new)
        replace(op, new.results)
        return
    value._type = parts
    if isinstance(value.owner, ops.Apply):
        _zeros_of(value.owner, parts)


def _zeros_beside(op: object, parts: TileT, kept: set[SSAValue]) -> None:
    """Zeros that meet parts at the end of a branch or in a loop are parts of zero."""
    if isinstance(op, ops.Yield):
        parent = op.parent_op()
        assert parent is not None
        for region in parent.regions:
            end = region.block.last_op
            assert isinstance(end, ops.Yield)
            for i, result in enumerate(parent.results):
                if result in kept and isinstance(end.values[i].type, TileT) and number(end.values[i]) == 0 and end.values[i].type != parts:
                    end.operands[i] = _zero_parts(end, parts)
        if isinstance(parent, ops.Loop):
            _zeros_beside(parent, parts, kept)
    elif isinstance(op, ops.Loop):
        first = len(op.operands) - len(op.carried)
        for i, result in enumerate(op.results):
            start = op.operands[first + i]
            if result in kept and number(start) == 0 and start.type != parts:
                op.operands[first + i] = _zero_parts(op, parts)


def _zeros_of(op: ops.Apply, parts: TileT) -> None:
    for i, a in enumerate(op.arguments):
        if isinstance(a.type, TileT) and a.type.layout.data == "rows" and number(a) == 0:
            op.operands[i] = _zero_parts(op, parts)


def _zero_parts(at: object, parts: TileT) -> SSAValue:
    assert isinstance(at, (ops.Yield, ops.Loop, ops.Apply))
    return insert(at, make.full(insert(at, ops.constant(0.0, F32)), parts))
