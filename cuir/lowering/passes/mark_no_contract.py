"""Mark float operations that feed comparisons, casts and step functions: no contraction or reordering.

FMA contraction (a product and a sum rounded once) may change whether a mask keeps a key, or which integer `floor`
gives.

The pass also marks the operations that compute such operands, back to reads of memory, reductions and products.
Comparisons do not mark row sums that a loop carries. Step functions do, since sums of integers are exact in any order;
they also mark through maxima and stores of this kernel. All scalars outside of roles are marked.
"""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects.builtin import UnitAttr
from xdsl.ir import BlockArgument, Operation, SSAValue

from ...checking.decisions import rounds_beside
from ...syntax.types import BOOL, F32, I32
from ..analyses.memory import Array, iterate_accesses
from ..analyses.value_flow import find_sources, find_targets
from ..ir import ops
from ..ir.ir_types import ScalarT, TileT, dtype_of
from ..ir.ir_walk import every
from .simplify import number


def run(kernel: ops.Kernel) -> None:
    """Mark operands of comparisons and casts, scalars of the frame, and operands of step functions."""
    compared = [x for op in every(kernel) if isinstance(op, ops.Apply) and dtype_of(op.result) in (I32, BOOL) for x in _list_floats(op)]
    compared += [op.results[0] for op in _iterate_frame(kernel) if isinstance(op, ops.Apply) and dtype_of(op.result).is_float]
    _mark(compared, _collect_sums(kernel))
    if step_operands := [x for op in every(kernel) if isinstance(op, ops.Apply) and _is_step_function(op) for x in _list_floats(op)]:
        _mark(step_operands, set(), _Stores(kernel))


def _is_step_function(op: ops.Apply) -> bool:
    """Return whether a rounding moves the result by a whole step (`jumps` of checking/decisions.py)."""
    kind, dtype = op.kind, dtype_of(op.result)
    rounds = dtype == F32 and bool(kind.linear) and any((n := number(a)) is not None and rounds_beside(n) for a in op.arguments)
    return kind.jumps or (kind.converts is not None and dtype == I32) or rounds


class _Stores:
    """The values that a kernel stores in each of its arrays and tensors."""

    def __init__(self, kernel: ops.Kernel):
        self.values: dict[Array, list[SSAValue]] = {}
        self.copied: dict[Array, list[Array]] = {}
        for op in every(kernel):
            places = list(iterate_accesses(op))
            for to in (p.array for p in places if p.writes):
                values = [a for a in op.operands if isinstance(a.type, (ScalarT, TileT)) and dtype_of(a).is_float]
                self.values.setdefault(to, []).extend(values)
                self.copied.setdefault(to, []).extend(p.array for p in places if not p.writes)

    def read(self, op: Operation) -> list[SSAValue]:
        """Return the values that an operation may read from memory."""
        worklist, visited, values = [p.array for p in iterate_accesses(op) if not p.writes], set[Array](), list[SSAValue]()
        while worklist:
            array = worklist.pop()
            if array not in visited:
                visited.add(array)
                values += self.values.get(array, [])
                worklist += self.copied.get(array, [])
        return values


def _mark(worklist: list[SSAValue], ends: set[SSAValue], stores: _Stores | None = None) -> None:
    """Mark the operations from which these values are computed, up to `ends`.

    With `stores`, the walk goes through maxima and memory, too.
    """
    visited: set[SSAValue] = set()
    while worklist:
        value = worklist.pop()
        if value in visited or value in ends:
            continue
        visited.add(value)
        op = value.owner
        if (inputs := find_sources(value)) is not None:
            worklist += inputs
        elif isinstance(op, ops.Apply) and not op.entry.reduces:
            op.properties["exact"] = UnitAttr()
            worklist += _list_floats(op)
        elif stores is not None and isinstance(op, ops.Apply) and not op.entry.sums:
            worklist += op.arguments
        elif stores is not None and isinstance(op, ops.Perform) and not op.entry.sums:
            worklist += stores.read(op)


def _iterate_frame(kernel: ops.Kernel) -> Iterator[Operation]:
    """Yield the operations outside of all roles."""
    for op in kernel.body.block.ops:
        if not isinstance(op, ops.Role):
            yield op
            yield from every(op)


def _list_floats(op: ops.Apply) -> list[SSAValue]:
    """Return the float operands of an operation on values; none of reductions."""
    return [] if op.entry.reduces else [a for a in op.arguments if dtype_of(a).is_float]


def _collect_sums(kernel: ops.Kernel) -> set[SSAValue]:
    """Return numbers per row that a sum of rows reaches, and that a loop carries or that flow into such."""
    users_by_value: dict[SSAValue, list[SSAValue]] = {}  # with the values that they flow into
    copies: dict[SSAValue, list[SSAValue]] = {}  # with those that receive them unchanged
    worklist: list[SSAValue] = [op.result for op in every(kernel) if isinstance(op, ops.Apply) and op.entry.reduces and op.entry.sums]
    while worklist:
        value = worklist.pop()
        if value in users_by_value or not isinstance(value.type, TileT) or value.type.shape[1] != 1 or not dtype_of(value).is_float:
            continue
        copies[value] = [v for use in value.uses for v in find_targets(use)]
        users = (use.operation for use in value.uses)
        users_by_value[value] = copies[value] + [op.result for op in users if isinstance(op, ops.Apply) and not op.entry.reduces]
        worklist += users_by_value[value]
    carried = {v for v in users_by_value if isinstance(v.owner.parent_op() if isinstance(v, BlockArgument) else v.owner, ops.Loop)}
    size = 0
    while size < len(carried):
        size = len(carried)
        carried |= {v for v, into in users_by_value.items() if not carried.isdisjoint(into)}
        carried |= users_by_value.keys() & {v for c in carried for v in copies[c]}
    return carried


__all__ = ["run"]
