"""Comparisons of indices as limits on the column: `q - k <= w` becomes `q - w <= k`, with the column alone on one side and a number a row on the other.

An i32 tile that is (something of the row) + s * column with s = 1 or -1 compared with another one leaves a comparison of the column with a limit. Limits of
one direction that are combined by & or | become one: the least or the greatest. Sums of what may be any number (see facts/ranges) saturate: a limit beyond
the ends of 32 bits is none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from xdsl.ir import Operation, SSAValue

from ...syntax.types import BOOL, I32
from ..ir import ops
from ..ir.machine_tiles import Line
from ..ir.types import TileT, dtype_of, is_tile, scalar, tile
from .rewriting import every, insert, replace
from .simplify import number


@dataclass(frozen=True)
class Affine:
    """base + slope * column; base is a scalar or a tile of a number a row, None for 0."""

    base: SSAValue | None
    slope: int


def run(kernel: ops.Kernel, far: Callable[[SSAValue], bool] = lambda _: False) -> None:
    for op in every(kernel):
        if op.parent is not None and isinstance(op, ops.Apply):
            if op.op in ("<", "<=") and is_tile(op.result) and dtype_of(op.arguments[0]) == I32:
                _compare(op, far)
            elif op.op in ("&", "|") and is_tile(op.result) and dtype_of(op.result) == BOOL:
                _combine(op)


def affine(value: SSAValue, at: Operation) -> Affine | None:
    """A value as such a sum; what it takes is put before `at`. None if it is none."""
    t = value.type
    if not isinstance(t, TileT) or t.layout.data in ("rows", "one"):
        return Affine(None, 0) if number(value) == 0 else Affine(value, 0)
    op = value.owner
    if isinstance(op, Line):
        slope = ops.known(op.slope)
        return Affine(op.rows, slope) if isinstance(slope, int) else None
    if not isinstance(op, ops.Apply):
        return None
    if op.op == "cols":
        return Affine(None, 1)
    if op.op == "full":
        return Affine(op.arguments[0], 0)
    if op.op not in ("+", "-", "*", "neg"):
        return None
    parts = [affine(a, at) for a in op.arguments]
    if any(p is None for p in parts):
        return None
    known = [p for p in parts if p is not None]
    if op.op == "neg":
        return Affine(_sum("neg", at, known[0].base), -known[0].slope)
    x, y = known
    if op.op == "+":
        return Affine(_add(x.base, y.base, at), x.slope + y.slope)
    if op.op == "-":
        return Affine(_subtract(x.base, y.base, at), x.slope - y.slope)
    for a, b in ((x, y), (y, x)):
        if b.slope == 0 and b.base is not None and (n := number(b.base)) is not None:
            return Affine(None if a.base is None else _sum("*", at, a.base, b.base), a.slope * int(n))
    return None if x.slope or y.slope else Affine(_sum("*", at, x.base, y.base) if x.base is not None and y.base is not None else None, 0)


def _sum(name: str, at: Operation, *operands: SSAValue | None) -> SSAValue | None:
    """An operation on bases: a scalar, or a tile of the shape that the operands have together."""
    given = [o for o in operands if o is not None]
    if len(given) < len(operands):
        return None
    shapes = [o.type.shape for o in given if isinstance(o.type, TileT)]
    t = tile(I32, max(r for r, _ in shapes), max(c for _, c in shapes)) if shapes else scalar(I32)
    return insert(at, ops.apply(name, given, t))


def _add(x: SSAValue | None, y: SSAValue | None, at: Operation) -> SSAValue | None:
    return y if x is None else x if y is None else _sum("+", at, x, y)


def _subtract(x: SSAValue | None, y: SSAValue | None, at: Operation) -> SSAValue | None:
    return x if y is None else _sum("neg", at, y) if x is None else _sum("-", at, x, y)


def _compare(op: ops.Apply, far: Callable[[SSAValue], bool]) -> None:
    """a < b or a <= b with slopes that differ by one: the column on one side."""
    if _is_limit(op):
        return
    a, b = (affine(x, op) for x in op.arguments)
    if a is None or b is None or abs(a.slope - b.slope) != 1:
        return
    columns = next(c for x in op.arguments if (c := _some_columns(x)) is not None)
    if a.slope > b.slope:  # base_a + column < base_b
        bound = _subtract(b.base, a.base, op)
        pair = [columns, _value(bound, op)]
    else:
        bound = _subtract(a.base, b.base, op)
        pair = [_value(bound, op), columns]
    replace(op, [insert(op, ops.apply(op.op, pair, op.result.type))])


def _value(base: SSAValue | None, at: Operation) -> SSAValue:
    return insert(at, ops.constant(0, I32)) if base is None else base


def _some_columns(value: SSAValue) -> SSAValue | None:
    """The column indices that an affine tile is made of."""
    op = value.owner
    if not isinstance(op, ops.Apply):
        return None
    if op.op == "cols":
        return value
    return next((c for a in op.arguments if (c := _some_columns(a)) is not None), None)


def _is_limit(op: ops.Apply) -> bool:
    return any(isinstance(x.owner, ops.Apply) and x.owner.op == "cols" and not _wide(y) for x, y in (op.arguments, op.arguments[::-1]))


def _wide(value: SSAValue) -> bool:
    return isinstance(value.type, TileT) and value.type.layout.data in ("columns", "full")


def _combine(op: ops.Apply) -> None:
    """Limits of one direction as one."""
    x, y = (_limit(a) for a in op.arguments)
    if x is None or y is None or x[:3] != y[:3]:
        return
    name, columns, below, bound = x
    least = below == (op.op == "&")  # of two upper limits the least holds for both
    merged = _sum("min" if least else "max", op, bound, y[3])
    assert merged is not None
    pair = [columns, merged] if below else [merged, columns]
    replace(op, [insert(op, ops.apply(name, pair, op.result.type))])


def _limit(value: SSAValue) -> tuple[str, SSAValue, bool, SSAValue] | None:
    """(< or <=, columns, whether the column is below, the bound) of a limit."""
    op = value.owner
    if not isinstance(op, ops.Apply) or op.op not in ("<", "<=") or not _is_limit(op) or dtype_of(op.arguments[0]) != I32:
        return None
    a, b = op.arguments
    below = isinstance(a.owner, ops.Apply) and a.owner.op == "cols"
    name, bound = op.op, b if below else a
    if name == "<=":  # column <= x is column < x + 1, x <= column is x - 1 < column
        at = op
        one = insert(at, ops.constant(1 if below else -1, I32))
        made = _sum("+", at, bound, one)
        assert made is not None
        name, bound = "<", made
    return name, a if below else b, below, bound


__all__ = ["Affine", "affine", "run"]
_ = Operation
