"""Limits on columns of one direction that & or | joins become one, the least or the greatest, whatever else is joined between them. Exact."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from xdsl.ir import SSAValue

from ...syntax.types import BOOL, I32, DType
from ..ir import ops
from ..ir.types import ScalarT, TileT, dtype_of, is_tile, scalar, tile
from .fusion import has_columns
from .rewriting import every, insert, replace


@dataclass(frozen=True)
class _Limit:
    """A comparison of the column with a number that is the same for all columns. Those of one kind join."""

    kind: tuple[str, SSAValue, bool]  # < or <=, the columns, whether they are the lesser side
    bound: SSAValue


def run(kernel: ops.Kernel) -> None:
    for op in every(kernel):
        if isinstance(op, ops.Apply) and op.op in ("&", "|") and is_tile(op.result) and dtype_of(op.result) == BOOL:
            _join(op)


def _join(op: ops.Apply) -> None:
    parts = list(_joined(op, op.op))
    groups: dict[tuple[str, SSAValue, bool], list[SSAValue]] = {}
    bounds: dict[SSAValue, SSAValue] = {}
    for part in parts:
        if (found := _limit(part)) is not None:
            groups.setdefault(found.kind, []).append(part)
            bounds[part] = found.bound
    for (name, columns, below), same in groups.items():
        if len(same) == 1:
            continue
        bound = bounds[same[0]]
        for part in same[1:]:  # of two upper limits the least holds for both
            operands = [bound, bounds[part]]
            bound = insert(op, ops.apply("min" if below == (op.op == "&") else "max", operands, _together(I32, operands)))
        made = insert(op, ops.apply(name, [columns, bound] if below else [bound, columns], _together(BOOL, same)))
        parts = [made if p is same[0] else p for p in parts if p not in same[1:]]
    if len(parts) == len(list(_joined(op, op.op))):
        return
    whole = parts[0]
    for part in parts[1:]:
        whole = insert(op, ops.apply(op.op, [whole, part], _together(BOOL, [whole, part])))
    if whole.type == op.result.type:
        replace(op, [whole])


def _joined(op: ops.Apply, name: str) -> Iterator[SSAValue]:
    """The truth values that an operation and those of its kind which it alone reads join, each once."""
    found: dict[SSAValue, None] = {}
    for value in op.arguments:
        inner = value.owner
        alone = isinstance(inner, ops.Apply) and inner.op == name and inner.parent is op.parent and len(list(value.uses)) == 1
        found |= dict.fromkeys(_joined(inner, name) if alone else [value])  # type: ignore[arg-type]
    yield from found


def _limit(value: SSAValue) -> _Limit | None:
    op = value.owner
    if not isinstance(op, ops.Apply) or op.op not in ("<", "<=") or dtype_of(op.arguments[0]) != I32:
        return None
    for below, (columns, bound) in ((True, op.arguments), (False, op.arguments[::-1])):
        if isinstance(columns.owner, ops.Apply) and columns.owner.op == "cols" and not has_columns(bound):
            return _Limit((op.op, columns, below), bound)
    return None


def _together(dtype: DType, values: Sequence[SSAValue]) -> TileT | ScalarT:
    """The type of what is made of these."""
    shapes = [v.type.shape for v in values if isinstance(v.type, TileT)]
    return tile(dtype, max(r for r, _ in shapes), max(c for _, c in shapes)) if shapes else scalar(dtype)
