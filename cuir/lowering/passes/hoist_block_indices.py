"""Compute quotients and remainders of indices once per tile, where a tile lies within one block.

The indices of a tile are s + i with 0 <= i < t. If s and the divisor c are multiples of some n >= t, the quotient (s +
i) // c is the same for the whole tile.

Then (s + i) % c is s % c + i. An element at one place for the whole tile is loaded once. Exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from xdsl.ir import Operation, SSAValue

from ...ops.traits import SUM
from ...syntax.types import I32
from ..analyses.alignment import is_multiple
from ..analyses.memory import is_memory_effect_free
from ..analyses.ranges import Ranges, analyse_ranges
from ..ir import constructors, ops
from ..ir.ir_types import TileT, element, is_scalar, scalar, tile
from ..ir.ir_walk import every
from .rewriting import insert, replace


def run(kernel: ops.Kernel) -> None:
    """Rewrite divisions of indices, then gathers whose indices have become one number."""
    facts = analyse_ranges(kernel)
    for op in every(kernel):
        if op.parent is not None and isinstance(op, ops.Apply) and op.kind.divides_integers and op.kind.rounds != "up":
            _rewrite_division(op, facts)
    for op in every(kernel):
        if op.parent is not None and isinstance(op, ops.Perform) and op.gathers and is_memory_effect_free(op):
            _read_once(op)


def _read_once(op: ops.Perform) -> None:
    """Read one element for a tile of indices that are all the same."""
    result, (place,) = op.results[0], (a.owner for a in op.arguments)
    assert isinstance(place, ops.At) and isinstance(result.type, TileT)
    numbers = [None if start is None else _unwrap_scalar(start) for start, _ in place.parts]
    if any(n is None and start is not None for n, (start, _) in zip(numbers, place.parts)) or not any(numbers):
        return
    if result.type.shape == (1, 1) or not all(isinstance(use.operation, ops.At) for use in result.uses):
        return
    t = tile(result.type.element, 1, 1)
    first = next(i for i, n in enumerate(numbers) if n is not None)
    indices = [insert(op, constructors.full(n, tile(I32, 1, 1))) if i == first and n is not None else n for i, n in enumerate(numbers)]
    at = insert(op, ops.at(place.array, [(n, size) for n, (_, size) in zip(indices, place.parts)], element(t.element, 1, 1)))
    replace(op, [insert(op, ops.perform(op.op, {p.data: at for p in op.params.data}, [t]))])


def _unwrap_scalar(value: SSAValue) -> SSAValue | None:
    """Return the scalar that a value is or repeats."""
    if is_scalar(value):
        return value
    return value.owner.arguments[0] if isinstance(value.owner, ops.Apply) and value.owner.kind.repeats else None


@dataclass(frozen=True)
class _Index:
    """The sum of scalars and of the row or column indices of a tile."""

    counts: SSAValue
    scalars: tuple[SSAValue, ...]


def _rewrite_division(op: ops.Apply, facts: Ranges) -> None:
    """Rewrite a quotient or remainder of an index, if no quotient steps inside the tile."""
    x, y = op.arguments
    c, index = ops.constant_value(y), _decompose(x)
    if not isinstance(c, int) or c < 1 or index is None or not index.scalars:
        return
    t = op.result.type
    assert isinstance(t, TileT) and t.shape == x.type.shape  # type: ignore[attr-defined]
    if not any(all(is_multiple(s, n, facts.fits) for s in index.scalars) for n in _list_divisors(c, max(t.shape))):
        return
    base = _insert_sum(index.scalars, op)
    if op.kind.rounds:
        replace(op, [insert(op, constructors.full(insert(op, constructors.of_kind(op, [base, y], scalar(I32))), t))])
    elif all(is_multiple(s, c, facts.fits) for s in index.scalars):
        replace(op, [index.counts])
    else:
        replace(op, [insert(op, constructors.add(insert(op, constructors.of_kind(op, [base, y], scalar(I32))), index.counts, t))])


def _list_divisors(c: int, least: int) -> list[int]:
    """Return divisors of c, from `least` on, that are worth a try: c, and the first power of two."""
    power = 1 << (least - 1).bit_length()
    return [n for n in (c, power) if n >= least and c % n == 0]


def _decompose(value: SSAValue) -> _Index | None:
    """Decompose a tile into such a sum."""
    if not isinstance(value.type, TileT):
        return None
    op = value.owner
    if not isinstance(op, ops.Apply):
        return None
    if op.kind.index_of:
        return _Index(value, ()) if math.prod(value.type.shape) > 1 else None
    if op.kind.linear != SUM:
        return None
    x, y = op.arguments
    for indices, number in ((x, y), (y, x)):
        if is_scalar(number) and (inner := _decompose(indices)) is not None:
            return _Index(inner.counts, (*inner.scalars, number))
    return None


def _insert_sum(scalars: tuple[SSAValue, ...], at: Operation) -> SSAValue:
    total, *remaining = scalars
    for s in remaining:
        total = insert(at, constructors.add(total, s, scalar(I32)))
    return total
