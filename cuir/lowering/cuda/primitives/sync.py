"""Barriers and fences. Counts in workers are counts of warps here: each warp of a worker arrives once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdsl.ir import SSAValue

from ...ir import ops
from ..operators import strip
from ..registry import prints
from ..writer import identifier

if TYPE_CHECKING:
    from ..role import RolePrinter


def symbol(value: SSAValue) -> str:
    """The name of the barrier, or of the ring, that a value is of."""
    owner = value.owner
    while isinstance(owner, ops.At):
        owner = owner.array.owner
    assert isinstance(owner, ops.Barrier)
    return owner.symbol.data


def barrier(role: RolePrinter, value: SSAValue) -> str:
    """A pointer to an mbarrier."""
    if isinstance(value.owner, ops.Barrier):
        return identifier(value.owner.symbol.data)
    assert isinstance(value.owner, ops.At)
    return f"{identifier(symbol(value))} + {role.elements.scalar(value.owner.starts[0])}"


def _keep_reads_before(role: RolePrinter) -> None:
    """An arrival of a single lane is no barrier to the compiler: what it reads of a tensor that others overwrite afterwards must have been read."""
    if role.kernel.handed:
        role.out.line('asm volatile("" ::: "memory");')


@prints("mbarrier.expect")
def expect(role: RolePrinter, op: ops.Perform) -> None:
    bar, size = barrier(role, op.arg("bar")), strip(role.elements.scalar(op.arg("bytes")))
    if role.single:
        _keep_reads_before(role)
        role.out.line(f"cuir::expect({bar}, {size});")
        return
    role.out.line("__syncwarp();")
    if role.threads == 32:
        role.out.line(f"if (lane == 0) cuir::expect({bar}, {size});")
    else:
        role.out.line(f"if (lane == 0) {{ if (warp == 0) cuir::expect({bar}, {size}); else cuir::arrive({bar}); }}")


@prints("mbarrier.arrive")
def arrive(role: RolePrinter, op: ops.Perform) -> None:
    bar, ctas = barrier(role, op.arg("bar")), role.kernel.checked.cluster
    everywhere = ctas > 1 and bool(op.const("cluster"))
    if role.single:
        _keep_reads_before(role)
    if everywhere and symbol(op.arg("bar")) in role.kernel.between_ctas:
        if role.single:
            role.out.line(f"for (int cta = 0; cta < {ctas}; ++cta) cuir::release_cluster({bar}, cta);")
        else:
            role.out.line(f"cuir::release_cluster_warp({bar}, lane, {ctas});")
    elif everywhere and role.single:
        role.out.line(f"for (int cta = 0; cta < {ctas}; ++cta) cuir::Bar::arrive({bar}, cta, true);")
    elif everywhere:
        role.out.line(f"cuir::arrive_cluster({bar}, lane, {ctas});")
    elif role.single:
        role.out.line(f"cuir::arrive({bar});")
    else:
        role.out.line(f"cuir::arrive_warp({bar}, lane);")


@prints("mbarrier.wait")
def wait(role: RolePrinter, op: ops.Perform) -> None:
    function = "wait_cluster" if symbol(op.arg("bar")) in role.kernel.between_ctas else "wait"
    role.out.line(f"cuir::{function}({barrier(role, op.arg('bar'))}, {strip(role.elements.scalar(op.arg('parity')))});")


def _named(role: RolePrinter, op: ops.Perform, function: str) -> None:
    value = op.arg("bar")
    name = symbol(value)
    number = str(role.kernel.named_barrier(name))
    if isinstance(value.owner, ops.At):
        number = f"{number} + {role.elements.scalar(value.owner.starts[0])}"
    threads = role.kernel.checked.barriers[name].count * role.threads
    role.out.line(f"cuir::{function}({number}, {threads});")


@prints("named_barrier.sync")
def named_sync(role: RolePrinter, op: ops.Perform) -> None:
    _named(role, op, "bar_sync")


@prints("named_barrier.arrive")
def named_arrive(role: RolePrinter, op: ops.Perform) -> None:
    _named(role, op, "bar_arrive")


@prints("sync")
def sync(role: RolePrinter, op: ops.Perform) -> None:
    checked = role.kernel.checked
    threads = sum(r.workers * r.threads for r in checked.roles)
    whole = threads == checked.threads
    role.out.line("__syncthreads();" if whole else f"cuir::bar_sync(0, {threads});  // the padding warps of a role do not take part")


@prints("fence_async")
def fence_async(role: RolePrinter, op: ops.Perform) -> None:
    role.out.line("cuir::fence_proxy();" if op.const("tensors") else "cutlass::arch::fence_view_async_shared();")
