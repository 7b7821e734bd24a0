"""Liveness of a role's values, stored values that a read touches, and registers that tiles take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from xdsl.ir import Block, Operation, SSAValue

from ..ir import ops
from ..ir.fixed_point import Backward
from ..ir.ir_types import ScalarT, TileT
from ..ir.ir_walk import every, is_inlined, operations


def is_stored(value: SSAValue) -> bool:
    """Return whether a value is a scalar or tile with registers of its own."""
    return isinstance(value.type, (ScalarT, TileT)) and not is_inlined(value)


def iterate_leaves(value: SSAValue) -> Iterator[SSAValue]:
    """Yield the stored values that reading a value reads."""
    if is_stored(value):
        yield value
    elif isinstance(value.owner, Operation) and not isinstance(value.owner, ops.Declaration):
        for operand in value.owner.operands:
            yield from iterate_leaves(operand)


class Liveness(Backward[frozenset[SSAValue]]):
    """The stored values of a role that are live after each operation."""

    def __init__(self, body: Block):
        super().__init__()
        self._leaves: dict[SSAValue, tuple[SSAValue, ...]] = {}  # loops are visited more than once
        self.run(body, frozenset())

    def join(self, a: frozenset[SSAValue], b: frozenset[SSAValue]) -> frozenset[SSAValue]:
        """Return the values that are live on either path."""
        return a | b

    def transfer(self, op: Operation, state: frozenset[SSAValue]) -> frozenset[SSAValue]:
        """Return the values that are live before an operation."""
        if len(op.results) == 1 and is_inlined(op.results[0]):
            return state
        if not state.isdisjoint(op.results):
            state = state.difference(op.results)
        read = self._read_values(op._operands)
        return state if read <= state else state | read

    def enter(self, op: Operation, state: frozenset[SSAValue]) -> frozenset[SSAValue]:
        """Return the values that are live at the end of an operation's regions; a loop reads its end at each turn."""
        return state.difference(op.results) | self._read_values([op.stop] if isinstance(op, ops.For) else [])

    def drop(self, values: Sequence[SSAValue], state: frozenset[SSAValue]) -> frozenset[SSAValue]:
        """Remove the arguments of a block."""
        return state.difference(values)

    def _read_values(self, values: Iterable[SSAValue]) -> set[SSAValue]:
        leaves = set[SSAValue]()
        for value in values:
            known = self._leaves.get(value)
            if known is None:
                known = self._leaves[value] = tuple(iterate_leaves(value))
            leaves.update(known)
        return leaves


def count_registers(values: Iterable[SSAValue], threads: int) -> int:
    """Return the registers of a thread that values take; a scalar, which may be uniform, takes none."""
    return sum(v.type.registers(threads) for v in values if isinstance(v.type, TileT))


def count_unrolled(loop: ops.For, turns: int, liveness: Liveness, threads: int) -> int:
    """Return the registers of a thread for what all turns of a loop load beside the tiles that are live in it.

    nvcc starts the loads of all turns of a loop without branches first.
    """
    loads = [r for op in operations(loop.body.block) if isinstance(op, ops.Perform) for r in op.results if not is_inlined(r)]
    live = liveness.at_start[loop.body.block] | set(loop.inner)
    return count_registers(live, threads) + turns * count_registers(loads, threads)


def find_peak(role: ops.Role, liveness: Liveness, threads: int) -> tuple[int, Operation | None]:
    """Return the most registers of a thread that live tiles take, and where they first do.

    The place is the first operation after which they do.
    """
    most: tuple[int, Operation | None] = (0, None)
    registers = dict[SSAValue, int]()  # of a value, which is live after many operations
    for op in every(role):
        live = liveness.after.get(op, frozenset()).union(r for r in op.results if is_stored(r))
        registers |= {v: count_registers([v], threads) for v in live if v not in registers}
        if (count := sum(map(registers.__getitem__, live))) > most[0]:
            most = count, op
    return most
