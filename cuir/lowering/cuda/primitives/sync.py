"""Printers of synchronisation: named barriers, joins of a CTA, branches of warps, order before waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdsl.ir import SSAValue

from ...ir import machine_ops, ops
from ...ir.exchanges import ReleaseSlot
from ...ir.ir_types import TileT
from ...ir.synchronisation import CtaSync, Join, RegisterFence
from ...select.hardware_barriers import find_barrier, get_number
from ...select.join_ways import ELIDED, IN_TWO_STEPS, WITH_UNIT
from ...select.ways import way_of
from ..operator_text import strip
from ..registry import code_of, prints
from ..writer import identifier

if TYPE_CHECKING:
    from ..context import KernelContext
    from ..role import RolePrinter


def symbol(value: SSAValue) -> str:
    """Return the name of the barrier, or of the ring, that a value refers to."""
    return find_barrier(value).symbol.data


def barrier(role: RolePrinter, value: SSAValue) -> str:
    """Return a pointer to an mbarrier."""
    if isinstance(value.owner, ops.Barrier):
        return identifier(value.owner.symbol.data)
    assert isinstance(value.owner, ops.At)
    return f"{identifier(symbol(value))} + {role.elements.scalar(value.owner.starts[0])}"


def _emit_named(role: RolePrinter, op: ops.Perform, function: str) -> None:
    value = op.arg("bar")
    named = find_barrier(value)
    number = str(get_number(named))
    if isinstance(value.owner, ops.At):
        number = f"{number} + {role.elements.scalar(value.owner.starts[0])}"
    threads = named.warps.data * 32
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
    threads = sum(r.workers.data * r.threads.data for r in role.kernel.kernel.roles)
    whole = threads == role.kernel.threads
    role.out.line("__syncthreads();" if whole else f"cuir::bar_sync(0, {threads});  // the padding warps of a role do not take part")


@prints("tile.join")
def join(role: RolePrinter, op: Join) -> None:
    """Emit a join of lanes, in the way that was selected."""
    role.target.code("join", way_of(op))(role, op)


@code_of("join", ELIDED)
@code_of("join", WITH_UNIT)
def omit_join(role: RolePrinter, op: Join) -> None:
    """Emit nothing: no join is needed, or the function that takes the work item holds it."""


@code_of("join", "bar.sync")
def join_warps(role: RolePrinter, op: Join) -> None:
    """Emit a barrier of a worker's warps."""
    assert isinstance(role.role, ops.Role)
    role.out.line(f"cuir::bar_sync({role.kernel.worker_barrier(role.role)}, {role.threads});")


@code_of("join", "__syncwarp")
def join_lanes(role: RolePrinter, op: Join) -> None:
    """Emit a barrier of each warp's lanes."""
    role.out.line("__syncwarp();")


@prints("tile.register_fence")
def fence_registers(role: RolePrinter, op: RegisterFence) -> None:
    """Emit a use of registers that nvcc does not see through, once for each variable."""
    for name in dict.fromkeys(role.storage(v).name for v in op.tiles):
        role.out.line(f"cuir::fence_regs({name});")


@code_of("meet", "__syncthreads")
def meet_at_once(kernel: KernelContext, op: CtaSync) -> None:
    """Emit a barrier of the CTA's threads."""
    kernel.out.line("__syncthreads();")


@code_of("meet", IN_TWO_STEPS)
def wait_for_cluster(kernel: KernelContext, op: CtaSync) -> None:
    """Emit the second step; the frame has the first, directly behind what other CTAs wait for."""
    kernel.out.line(kernel.target.format_phrase("wait for cluster"))


@prints("tile.release_slot")
def release_slot(role: RolePrinter, op: ReleaseSlot) -> None:
    """Emit nothing: the function that takes the work item gives the slot back."""


@prints("warp_any")
def warp_any(role: RolePrinter, op: ops.Apply) -> None:
    """Emit a vote over the 16 rows that a warp holds of each slab."""
    x, t, target = op.arguments[0], op.result.type, role.storage(op.result).name
    assert isinstance(t, TileT)
    if not isinstance(x.type, TileT) or not x.type.layout.varies_by_row:
        role.out.line(f"bool {(vote := role.out.temp('vote'))} = false;")
        if isinstance(x.type, TileT):
            role.elements.emit_loop(x.type, lambda at: f"{vote} |= {strip(role.elements.element(x, at))};")
        else:
            role.out.line(f"{vote} = {strip(role.elements.scalar(x))};")
        role.elements.emit_loop(t, lambda at: f"{target}[{at.r}] = __any_sync(~0u, {vote});")
        return
    slabs, votes = role.fragment(x.type).slabs, role.out.temp("votes")
    role.out.line(f"bool {votes}[{slabs}] = {{}};")
    role.elements.emit_loop(x.type, lambda at: f"{votes}[{at.r} / 2] |= {strip(role.elements.element(x, at))};")
    role.elements.emit_loop(t, lambda at: f"{target}[{at.r}] = __any_sync(~0u, {votes}[{at.r} / 2]);")


@prints("tile.row_bound")
def row_bound(role: RolePrinter, op: machine_ops.RowBound) -> None:
    """Emit an upper bound, at least 0, of a thread's elements of each row."""
    role.out.line(f"cuir::row_bound({role.elements.array(op.x)}, {role.storage(op.result).name});")


@prints("tile.warp_if")
def warp_if(role: RolePrinter, op: machine_ops.WarpIf) -> None:
    """Emit a branch that a warp takes if any of its lanes votes for it."""
    t, moves = op.vote.type, role.out.temp("vote")
    assert isinstance(t, TileT)
    role.out.line(f"bool {moves} = false;")
    role.elements.emit_loop(t, lambda at: f"{moves} |= {strip(role.elements.element(op.vote, at))};")
    role.emit_branch(op, f"__any_sync(~0u, {moves})")


@prints("tile.pinned")
def emit_pinned(role: RolePrinter, op: machine_ops.Pinned) -> None:
    """Emit a test that keeps values computed before a wait.

    It is hardly ever true, but no compiler can know that: the compiler knows only that an exponential, and so a sum of
    exponentials, is not negative.
    """
    test = " || ".join(_make_unlikely_test(role, v) for v in op.values)
    if op.condition is None or op.barrier is None or op.parity is None:
        role.out.line(f"if (__any_sync(~0u, {test})) __nanosleep(0);")
        return
    condition = strip(role.elements.scalar(op.condition))
    place = f"{barrier(role, op.barrier)}, {strip(role.elements.scalar(op.parity))}"
    with role.out.block(f"if ({condition} || __any_sync(~0u, {test}))"):  # only polls the barrier if the condition fails
        role.out.line(f"if (!cuir::try_wait({place}) && {condition}) cuir::wait({place});")


def _make_unlikely_test(role: RolePrinter, value: SSAValue) -> str:
    """Return a condition on a value that is hardly ever true."""
    t, name = value.type, role.elements.array(value)
    assert isinstance(t, TileT)
    if t.layout.is_fragment:
        return f"cuir::any_bits({name}) == 0x7f7f7f7f"
    return " + ".join(f"{name}[{r}]" for r in range(role.fragment(t).row_values)) + " > 3e38f"
