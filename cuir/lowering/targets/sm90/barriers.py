"""Printers of mbarriers, of the fence of the async proxy, and of CTAs of a cluster.

Counts in workers are counts of warps here: each warp of a worker arrives once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...cuda.operator_text import Operation, strip
from ...cuda.primitives.sync import barrier
from ...cuda.registry import Printers
from ...ir import ops
from ...ir.synchronisation import Join, ProxyFence
from ...select.join_ways import JOINED, ONE_LANE, UNJOINED, WITH_ARRIVAL
from ...select.ways import SCOPE, is_selected, way_of
from .arrival_ways import CLUSTER, COMPILER_BARRIER

if TYPE_CHECKING:
    from ...cuda.role import RolePrinter
PRINTERS = Printers()


@PRINTERS.prints("mbarrier.expect")
def expect(role: RolePrinter, op: ops.Perform) -> None:
    """Emit an arrival that announces the bytes of bulk copies."""
    bar, size = barrier(role, op.arg("bar")), strip(role.elements.scalar(op.arg("bytes")))
    if role.single:
        role.out.line(f"cuir::expect({bar}, {size});")
        return
    if role.threads == 32:
        role.out.line(f"if (lane == 0) cuir::expect({bar}, {size});")
    else:
        role.out.line(f"if (lane == 0) {{ if (warp == 0) cuir::expect({bar}, {size}); else cuir::arrive({bar}); }}")


@PRINTERS.prints("mbarrier.arrive")
def arrive(role: RolePrinter, op: ops.Perform) -> None:
    """Emit an arrival, in one CTA or in several of the cluster."""
    ctas = select_ctas(role.kernel.kernel, op.const("cluster", False))
    released = is_selected(op, CLUSTER, SCOPE)
    role.target.code("arrive", way_of(op))(role, barrier(role, op.arg("bar")), ctas, released)


@PRINTERS.code_of("arrive", ONE_LANE)
def arrive_single(role: RolePrinter, bar: str, ctas: CtaLine | None, released: bool) -> None:
    """Emit an arrival of one lane; `released` says that the barrier orders accesses to tensors between CTAs."""
    if ctas is None:
        role.out.line(f"cuir::arrive({bar});")
        return
    place = f"{bar}, {ctas.rank('cta')}"
    function = f"cuir::release_cluster({place})" if released else f"cuir::Bar::arrive({place}, true)"
    role.out.line(f"for (int cta = 0; cta < {ctas.count}; ++cta) {function};")


@PRINTERS.code_of("arrive", JOINED)
def arrive_joined(role: RolePrinter, bar: str, ctas: CtaLine | None, released: bool) -> None:
    """Emit a join of a warp's lanes and the arrival of one of them, or of one for each CTA."""
    if ctas is None:
        role.out.line(f"cuir::arrive_warp({bar}, lane);")
        return
    function = "release_cluster_warp" if released else "arrive_cluster"
    role.out.line(f"cuir::{function}({bar}, lane, {ctas.count}, {ctas.rank('lane')});")


@PRINTERS.code_of("arrive", UNJOINED)
def arrive_unjoined(role: RolePrinter, bar: str, ctas: CtaLine | None, released: bool) -> None:
    """Emit the arrival of one lane of a warp, or of one for each CTA."""
    if ctas is None:
        role.out.line(f"if (lane == 0) cuir::arrive({bar});")
        return
    place = f"{bar}, {ctas.rank('lane')}"
    function = f"cuir::release_cluster({place})" if released else f"cuir::Bar::arrive({place}, true)"
    role.out.line(f"if (lane < {ctas.count}) {function};")


@PRINTERS.code_of("join", WITH_ARRIVAL)
def omit_join(role: RolePrinter, op: Join) -> None:
    """Emit nothing: the function of the arrival that follows holds the join."""


@PRINTERS.code_of("join", COMPILER_BARRIER)
def keep_reads_before(role: RolePrinter, op: Join) -> None:
    """Emit a barrier for nvcc alone."""
    role.out.line('asm volatile("" ::: "memory");')


@PRINTERS.prints("mbarrier.wait")
def wait(role: RolePrinter, op: ops.Perform) -> None:
    """Emit a wait for the phase of a parity."""
    function = "wait_cluster" if is_selected(op, CLUSTER, SCOPE) else "wait"
    role.out.line(f"cuir::{function}({barrier(role, op.arg('bar'))}, {strip(role.elements.scalar(op.arg('parity')))});")


@PRINTERS.prints("fence_async")
def fence_async(role: RolePrinter, op: ops.Perform) -> None:
    """Emit a fence between ordinary and asynchronous accesses."""
    role.out.line("cuir::fence_proxy();" if op.const("tensors") else "cutlass::arch::fence_view_async_shared();")


@PRINTERS.prints("tile.proxy_fence")
def proxy_fence(role: RolePrinter, op: ProxyFence) -> None:
    """Emit a fence between ordinary reads of shared memory and later writes by the copy engine."""
    role.out.line("cutlass::arch::fence_view_async_shared();")


@PRINTERS.text_of("cta_rank")
def cta_rank(cx: Operation) -> str:
    """Return the rank of the CTA in its cluster."""
    return CTA_RANK


CTA_RANK = "int(cute::block_rank_in_cluster())"


@dataclass(frozen=True)
class CtaLine:
    """CTAs of a cluster along an axis.

    `count` is their number, `rank` maps the text of i to the rank of the i-th, and `mask` has a bit for each.
    """

    count: int
    rank: Callable[[str], str]
    mask: str


def select_ctas(kernel: ops.Kernel, along: bool | str) -> CtaLine | None:
    """Return the CTAs that `along` names, or None for the CTA itself."""
    size: int = kernel.cluster.data
    across: int = kernel.cluster_x.data
    count = {"x": across, "y": size // across}.get(str(along), size if along else 1)
    if count == 1:
        return None
    if count == size:
        return CtaLine(size, lambda i: i, str((1 << size) - 1))
    if along == "x":
        first = f"{CTA_RANK} / {across} * {across}"
        return CtaLine(count, lambda i: f"{first} + {i}", f"{(1 << count) - 1} << ({first})")
    bits = sum(1 << across * y for y in range(count))
    return CtaLine(count, lambda i: f"{CTA_RANK} % {across} + {across} * {i}", f"{bits} << {CTA_RANK} % {across}")
