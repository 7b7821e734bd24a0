"""Barriers and fences. Counts in workers are counts of warps here: each warp of a worker arrives once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...checking.views import root_name
from ...syntax.nodes import Call, Expr, Literal, Name, Subscript
from ..registry import emits
from ..values import strip
from ..writer import identifier

if TYPE_CHECKING:
    from ..role import RoleEmitter

for _name in ("mbarrier", "named_barrier"):
    emits(_name, "structure")(lambda: None)  # declared by kernel.py


def barrier(role: RoleEmitter, expr: Expr) -> str:
    """A pointer to an mbarrier."""
    if isinstance(expr, Name):
        return identifier(expr.id)
    assert isinstance(expr, Subscript) and isinstance(expr.value, Name)
    return f"{identifier(expr.value.id)} + {role.scalars.scalar(expr.indices[0])}"  # type: ignore[arg-type]


def _keep_reads_before(role: RoleEmitter) -> None:
    """An arrival of a single lane is no barrier to the compiler: what it reads of a tensor that others overwrite afterwards must have been read."""
    if role.kernel.handed:
        role.out.line('asm volatile("" ::: "memory");')


@emits("mbarrier.expect", "statement")
def expect(role: RoleEmitter, call: Call) -> None:
    args = role.call(call).args
    bar, size = barrier(role, args["bar"]), strip(role.scalars.scalar(args["bytes"]))
    if role.single:
        _keep_reads_before(role)
        role.out.line(f"cuir::expect({bar}, {size});")
        return
    role.out.line("__syncwarp();")
    if role.threads == 32:
        role.out.line(f"if (lane == 0) cuir::expect({bar}, {size});")
    else:
        role.out.line(f"if (lane == 0) {{ if (warp == 0) cuir::expect({bar}, {size}); else cuir::arrive({bar}); }}")


@emits("mbarrier.arrive", "statement")
def arrive(role: RoleEmitter, call: Call) -> None:
    args = role.call(call).args
    bar = barrier(role, args["bar"])
    ctas = role.kernel.checked.cluster
    everywhere = ctas > 1 and isinstance(args.get("cluster"), Literal) and bool(args["cluster"].value)  # type: ignore[union-attr]
    if role.single:
        _keep_reads_before(role)
    if everywhere and root_name(args["bar"]) in role.kernel.between_ctas:
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


@emits("mbarrier.wait", "statement")
def wait(role: RoleEmitter, call: Call) -> None:
    args = role.call(call).args
    function = "wait_cluster" if root_name(args["bar"]) in role.kernel.between_ctas else "wait"
    role.out.line(f"cuir::{function}({barrier(role, args['bar'])}, {strip(role.scalars.scalar(args['parity']))});")


def _named(role: RoleEmitter, call: Call, function: str) -> None:
    expr = role.call(call).args["bar"]
    name = expr.id if isinstance(expr, Name) else expr.value.id  # type: ignore[union-attr]
    first = role.kernel.named_barrier(name)
    number = str(first)
    if isinstance(expr, Subscript):
        number = f"{first} + {role.scalars.scalar(expr.indices[0])}"  # type: ignore[arg-type]
    threads = role.kernel.checked.barriers[name].count * role.threads
    role.out.line(f"cuir::{function}({number}, {threads});")


@emits("named_barrier.sync", "statement")
def named_sync(role: RoleEmitter, call: Call) -> None:
    _named(role, call, "bar_sync")


@emits("named_barrier.arrive", "statement")
def named_arrive(role: RoleEmitter, call: Call) -> None:
    _named(role, call, "bar_arrive")


@emits("sync", "statement")
def sync(role: RoleEmitter, call: Call) -> None:
    checked = role.kernel.checked
    threads = sum(r.workers * r.threads for r in checked.roles)
    role.out.line(
        "__syncthreads();"
        if threads == checked.threads
        else f"cuir::bar_sync(0, {threads});  // the padding warps of a role do not take part"
    )


@emits("fence_async", "statement")
def fence_async(role: RoleEmitter, call: Call) -> None:
    tensors = role.call(call).args.get("tensors")
    everything = isinstance(tensors, Literal) and bool(tensors.value)
    role.out.line("cuir::fence_proxy();" if everything else "cutlass::arch::fence_view_async_shared();")
