"""Printers of named barriers and of the join of a CTA, and names of barriers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdsl.ir import SSAValue

from ...ir import ops
from ..registry import prints
from ..writer import identifier

if TYPE_CHECKING:
    from ..role import RolePrinter


def symbol(value: SSAValue) -> str:
    """Return the name of the barrier, or of the ring, that a value refers to."""
    owner = value.owner
    while isinstance(owner, ops.At):
        owner = owner.array.owner
    assert isinstance(owner, ops.Barrier)
    return owner.symbol.data


def barrier(role: RolePrinter, value: SSAValue) -> str:
    """Return a pointer to an mbarrier."""
    if isinstance(value.owner, ops.Barrier):
        return identifier(value.owner.symbol.data)
    assert isinstance(value.owner, ops.At)
    return f"{identifier(symbol(value))} + {role.elements.scalar(value.owner.starts[0])}"


def _emit_named(role: RolePrinter, op: ops.Perform, function: str) -> None:
    value = op.arg("bar")
    name = symbol(value)
    number = str(role.kernel.reserve_named_barrier(name))
    if isinstance(value.owner, ops.At):
        number = f"{number} + {role.elements.scalar(value.owner.starts[0])}"
    threads = role.kernel.checked.barriers[name].warps * 32
    role.out.line(f"cuir::{function}({number}, {threads});")


@prints("named_barrier.sync")
def named_sync(role: RolePrinter, op: ops.Perform) -> None:
    """Emit a wait at a named barrier."""
    _emit_named(role, op, "bar_sync")


@prints("named_barrier.arrive")
def named_arrive(role: RolePrinter, op: ops.Perform) -> None:
    """Emit an arrival at a named barrier."""
    _emit_named(role, op, "bar_arrive")


@prints("sync")
def sync(role: RolePrinter, op: ops.Perform) -> None:
    """Emit a barrier of all workers of the CTA."""
    checked = role.kernel.checked
    threads = sum(r.workers * r.threads for r in checked.roles)
    whole = threads == checked.threads
    role.out.line("__syncthreads();" if whole else f"cuir::bar_sync(0, {threads});  // the padding warps of a role do not take part")
