"""Registers of a thread that a role's tiles take, and whether all turns of a loop fit at once."""

from __future__ import annotations

from collections.abc import Iterable

from xdsl.ir import Operation, SSAValue

from ..ir import ops
from ..ir.inlining import is_inlined
from ..ir.ir_types import TileT
from ..ir.ir_walk import every, operations
from .liveness import Liveness, is_stored


def count_registers(values: Iterable[SSAValue], threads: int) -> int:
    """Return the registers of a thread that values take; a scalar, which may be uniform, takes none."""
    return sum(v.type.registers(threads) for v in values if isinstance(v.type, TileT))


def fits_unrolled(loop: ops.For, turns: int, liveness: Liveness, threads: int, available: int) -> bool:
    """Return whether a thread can hold what all turns of a loop load beside the tiles that are live in it.

    available: registers of a thread. nvcc starts the loads of all turns of a loop without branches first.
    """
    loads = [r for op in operations(loop.body.block) if isinstance(op, ops.Perform) for r in op.results if not is_inlined(r)]
    live = liveness.at_start[loop.body.block] | set(loop.inner)
    return count_registers(live, threads) + turns * count_registers(loads, threads) <= available


def find_peak(role: ops.Role, liveness: Liveness, threads: int) -> tuple[int, Operation | None]:
    """Return the most registers of a thread that live tiles take, and where they first do.

    The place is the first operation after which they do.
    """
    most: tuple[int, Operation | None] = (0, None)
    for op in every(role):
        live = liveness.after.get(op, frozenset()) | {r for r in op.results if is_stored(r)}
        if (count := count_registers(live, threads)) > most[0]:
            most = count, op
    return most
