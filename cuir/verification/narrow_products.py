"""Precision of sums of 8-bit products on the tensor core, by the model of docs/semantics.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..checking.checked import BoundCall, Checked
from ..ops.meaning.tiles import NARROW_SUM_BITS, narrow_sum_error
from ..syntax.nodes import Assign, For, If, Name, Stmt
from ..syntax.types import DType, SharedView, TileType
from ..syntax.walk import walk

_UNIT = 1024  # of K: unit of the error of a sum whose length depends on the launch


@dataclass(frozen=True)
class NarrowSum:
    """The longest sum of a product of 8-bit floats.

    k: its length in the runs so far; open: a launch may make it longer.
    """

    dtypes: tuple[str, ...]
    line: int
    k: int
    open: bool

    def __str__(self) -> str:
        longer = f", the longest sum of all runs, {narrow_sum_error(_UNIT):.1e} for each {_UNIT:,} of K" if self.open else ""
        return (
            f"products of {' and '.join(self.dtypes)} in line {self.line}: the tensor core keeps {NARROW_SUM_BITS} bits of a sum, and cuts off "
            f"up to {narrow_sum_error(self.k):.1e} of the largest product or partial sum over K = {self.k:,}{longer}; the runs here sum in f32"
        )


def find_narrow_sums(checked: Checked) -> list[NarrowSum]:
    """Return one record for each sum of 8-bit products in the kernel's text, at its first product."""
    from ..interp.interpreted_launch import list_loop_turns  # reports are read without the interpreter

    most: dict[int, int] = {}
    for turns in list_loop_turns(checked):
        most[id(turns.stmt)] = max(most.get(id(turns.stmt), 1), turns.most)
    sums: dict[tuple[str, str, tuple[int, ...]], NarrowSum] = {}
    for role in checked.roles:
        for stmt, call, loops in _find_products(role.body, checked, ()):
            left, right = (checked.find_type(call.args[n]) for n in ("a", "b"))
            assert isinstance(left, (TileType, SharedView)) and isinstance(right, (TileType, SharedView))
            if not (_is_narrow(left.dtype) and _is_narrow(right.dtype)):
                continue
            columns = left.cols if isinstance(left, TileType) else int(left.dims[-1])
            carried = [loop for loop in loops if _carries(loop, stmt.targets[0])]
            for loop in carried:
                columns *= max(1, most.get(id(loop), 1))
            dtypes = tuple(dict.fromkeys((left.dtype.name, right.dtype.name)))
            key = (role.name, stmt.targets[0], tuple(id(loop) for loop in loops))
            before = sums.get(key, NarrowSum(dtypes, stmt.span.line, 0, bool(carried)))
            sums[key] = replace(before, k=before.k + columns)
    return sorted(set(sums.values()), key=lambda x: (x.line, x.k))


def _is_narrow(dtype: DType) -> bool:
    return dtype.is_float and dtype.itemsize == 1


def _find_products(body: Sequence[Stmt], checked: Checked, loops: tuple[For, ...]) -> Iterator[tuple[Assign, BoundCall, tuple[For, ...]]]:
    """Yield products bound to a name, with the enclosing loops, the innermost first."""
    for stmt in body:
        if isinstance(stmt, For):
            yield from _find_products(stmt.body, checked, (stmt, *loops))
        elif isinstance(stmt, If):
            yield from _find_products((*stmt.body, *stmt.orelse), checked, loops)
        elif isinstance(stmt, Assign):
            bound = checked.find_call(stmt.value)
            if bound is not None and bound.op.traits.product:
                yield stmt, bound, loops


def _carries(loop: For, name: str) -> bool:
    """Return whether a name is loop-carried: each value that the body assigns to it reads the name itself."""
    values = [n.value for stmt in loop.body for n in walk(stmt) if isinstance(n, Assign) and name in n.targets]
    return bool(values) and all(any(isinstance(n, Name) and n.id == name for n in walk(value)) for value in values)
