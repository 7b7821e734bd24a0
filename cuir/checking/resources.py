"""Capacities: the layout of arrays in shared memory, the warps of roles, and registers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from ..ops import TABLE
from ..ops.limits import TARGETS, Target, count_pool_registers, list_architectures
from ..syntax.nodes import Call, Kernel, Stmt, Typed
from ..syntax.types import COLUMN_BYTES, TENSOR_COLUMNS, TENSOR_MEMORY, BarrierType, SharedView, TileType
from ..syntax.walk import walk
from ..text.diagnostics import Sink
from .checked import Barrier, Checked, Role, SharedAlloc, TensorParam, call_of

COPY_UNIT = 128  # alignment in bytes of a bulk copy's destination with rows without panels
EXCHANGED_COLUMN = 16  # bytes: a number of each of the four warps of a warpgroup
MBARRIERS = 1024  # most mbarriers of a kernel, each stage of a ring counts; the clocks have an entry for each
MBARRIER_ARRIVALS = 2**20 - 1  # of a phase (PTX ISA, mbarrier.init)
RESERVED = 512  # bytes of shared memory for the lowering: a queue of work items and its mbarriers


def lay_out_shared(
    arrays: dict[str, tuple[SharedView, str | None, Stmt]], barriers: dict[str, tuple[BarrierType, int, Stmt]], target: Target, sink: Sink
) -> tuple[dict[str, SharedAlloc], int]:
    """Compute offsets of all arrays, in the order of the text, and the end of the last.

    Panelled ones lie at multiples of 1024 bytes, others of 16, or 128 if bulk copies may fill them.
    """
    table: dict[str, SharedAlloc] = {}
    end, tensor_end = 0, TENSOR_MEMORY
    for name, (view, over, stmt) in arrays.items():
        alloc = SharedAlloc(name, view.dtype, view.dims, 0, over, stmt.span)
        if view.in_tensor_memory:
            table[name] = replace(alloc, offset=tensor_end)
            tensor_end += alloc.nbytes
            continue
        if alloc.panelled and alloc.rows % 8:
            sink.error("T162", f"an array of 128-byte panels has a multiple of 8 rows, found {alloc.rows}", stmt.span)
        if over is None:
            unit = 1024 if alloc.panelled else COPY_UNIT if alloc.row_bytes % COPY_UNIT == 0 else 16
            table[name] = replace(alloc, offset=-(-end // unit) * unit)
            end = table[name].offset + alloc.nbytes
            continue
        base = table.get(over)
        if base is None:
            continue  # reported where `over` was typed
        if alloc.nbytes > base.nbytes:
            sink.error(
                "M304",
                f"`{name}` takes {alloc.nbytes} bytes and lies over `{over}`, which has {base.nbytes}",
                stmt.span,
                notes=[(f"`{over}` is declared here", base.span)],
            )
        if alloc.panelled and base.offset % 1024:
            sink.error("M304", f"`{name}` has 128-byte panels and lies over `{over}`, which has none", stmt.span)
        table[name] = replace(alloc, offset=base.offset)
    if (columns := (tensor_end - TENSOR_MEMORY) // COLUMN_BYTES) > TENSOR_COLUMNS:
        largest = max((a for a in table.values() if a.offset >= TENSOR_MEMORY), key=lambda a: a.nbytes)
        sink.error("M301", f"a CTA has {TENSOR_COLUMNS} columns of tensor memory, found {columns}", largest.span)
    signals = count_signal_bytes(barriers)
    reserved = count_reserved_bytes(target)
    need = end + signals + reserved
    if need > target.shared_bytes:
        places = [(a.nbytes, a.span) for a in table.values() if a.offset < TENSOR_MEMORY]
        places += [(8 * (t.stages or 1), stmt.span) for t, _, stmt in barriers.values() if not TABLE[t.kind].traits.hardware]
        sizes = "".join(f"{a.name} {a.nbytes}, " for a in table.values() if a.over is None and a.offset < TENSOR_MEMORY)
        sink.error(
            "M301",
            f"a CTA on {target.name} has {target.shared_bytes} bytes of shared memory, found {need}: {sizes}barriers {signals}, reserved {reserved}",
            max(places, key=lambda p: p[0])[1],
            "use fewer stages or smaller tiles, or lay arrays over one another (over=)",
        )
    return table, end


def count_reserved_bytes(target: Target) -> int:
    """Return the bytes of shared memory that the lowering may take: without mbarriers it makes no queue."""
    return RESERVED if target.has("mbarriers") else 0


def count_signal_bytes(barriers: dict[str, tuple[BarrierType, int, Stmt]]) -> int:
    """Return the bytes of shared memory that the barriers take."""
    return sum(8 * (t.stages or 1) for t, _, _ in barriers.values() if not TABLE[t.kind].traits.hardware)


def count_shared_bytes(checked: Checked) -> int:
    """Return the bytes of shared memory that a CTA may take: arrays, barriers, and what is reserved."""
    return (
        checked.shared_bytes
        + sum(8 * (b.stages or 1) for b in checked.barriers.values() if not b.hardware)
        + count_reserved_bytes(TARGETS[checked.arch])
    )


def lay_out_exchanges(roles: list[Role], end: int, signals: int, target: Target, sink: Sink) -> tuple[list[Role], int]:
    """Give each warpgroup the shared memory through which its warps exchange reductions of columns.

    It lies behind the arrays. Returns the roles and the end of what is laid out. Reports M301 if it does not fit.
    """
    placed: list[Role] = []
    for role in roles:
        widest: Call | None = None
        columns = 0
        for node in (n for stmt in role.body for n in walk(stmt) if isinstance(n, Call)) if role.threads == 128 else ():
            call = call_of(node)
            if call is not None and call.op.traits.column_reduction and isinstance(node.type, TileType) and node.type.cols > columns:
                widest, columns = node, node.type.cols
        if widest is None:
            placed.append(role)
            continue
        start, each = -(-end // 16) * 16, columns * EXCHANGED_COLUMN
        end = start + each * role.workers
        placed.append(replace(role, exchange=start, exchanged=each))
        if (need := end + signals + count_reserved_bytes(target)) > target.shared_bytes:
            sink.error(
                "M301",
                f"a CTA on {target.name} has {target.shared_bytes} bytes of shared memory, found {need}: this takes {each} a warpgroup",
                widest.span,
                "use fewer stages or smaller tiles, or reduce fewer columns at a time",
            )
            break
    return placed, end


def check_roles(roles: list[Role], kernel: Kernel, target: Target, sink: Sink) -> tuple[list[Role], int]:
    """Assign warps to roles.

    Roles of warps that follow each other and agree on registers share a warpgroup while they fit.
    """
    placed: list[Role] = []
    registers: list[int | None] = []  # of each warpgroup
    room = 0  # free warps of the last warpgroup, if it may be shared
    for role in roles:
        if role.threads == 128:
            placed.append(replace(role, warpgroup=len(registers), warp=0))
            registers += [role.registers] * role.workers
            room = 0
        elif role.workers <= room and registers[-1] == role.registers:
            placed.append(replace(role, warpgroup=len(registers) - 1, warp=4 - room))
            room -= role.workers
        else:
            placed.append(replace(role, warpgroup=len(registers), warp=0))
            groups = -(-role.workers // 4)
            registers += [role.registers] * groups
            room = 4 * groups - role.workers
    threads = 128 * len(registers)
    if threads > target.threads:
        sink.error("M305", f"a CTA has at most {target.threads} threads, found {threads}", kernel.span)
    else:
        _check_registers(placed, registers, threads, kernel, target, sink)
    return placed, len(registers)


def _check_registers(roles: list[Role], groups: list[int | None], threads: int, kernel: Kernel, target: Target, sink: Sink) -> None:
    for role in roles:
        if role.registers is None:
            continue
        if not target.has("register_reallocation"):
            sink.error(
                "S217",
                f"registers= needs {' or '.join(list_architectures('register_reallocation'))} (setmaxnreg), this kernel is for {target.name}",
                role.span,
            )
        elif role.registers % 8 or not 24 <= role.registers <= 256:
            sink.error("M302", f"registers of a thread are a multiple of 8 from 24 to 256, found {role.registers}", role.span)
    if all(g is None for g in groups):
        return
    if any(g is None for g in groups):
        sink.error("S216", "registers= is given for some roles; give it for all", next(r.span for r in roles if r.registers is None))
        return
    pool, used = count_pool_registers(threads), 128 * sum(g for g in groups if g is not None)
    if used > pool:
        each = ", ".join(f"{r.name} {r.registers}" for r in roles)
        most = max(g for g in groups if g is not None)
        count = groups.count(most)
        fits = (pool // 128 - sum(g for g in groups if g is not None and g != most)) // count // 8 * 8
        instead = f", such as {most} to {fits}" if fits >= 24 else ""
        sink.error(
            "M302",
            f"the roles take {used} registers, a CTA of {threads} threads has {pool} ({pool // threads} a thread at launch): {each} a thread",
            kernel.span,
            f"lower registers= of a role{instead}; a role of warps takes a whole warpgroup's",
        )


def check_counts(barriers: Collection[Barrier], arriving: Mapping[str, int], target: Target, sink: Sink) -> None:
    """Check that the hardware can count a phase of each barrier.

    arriving: threads of a worker of each role.
    """
    stages = sum(bar.stages or 1 for bar in barriers if not bar.hardware)
    if MBARRIERS < stages <= target.shared_bytes // 8:  # more are too much shared memory, too
        longest = max((bar for bar in barriers if not bar.hardware), key=lambda bar: bar.stages or 1)
        sink.error(
            "M306", f"a kernel has at most {MBARRIERS} mbarriers, found {stages}", longest.span, "a ring has as many stages as its buffer"
        )
    for bar in barriers:
        if bar.hardware:
            most, warps = target.threads // 32, max(bar.warps, bar.count)
            if warps > most:
                sink.error(
                    "M306",
                    f"a CTA has at most {most} warps, found a phase of `{bar.name}` with {warps}",
                    bar.span,
                    "the count of a named barrier is the number of workers that come to it",
                )
            continue
        arrivals = bar.count * (arriving.get(bar.arrivers or "", 32) // 32)
        if arrivals > MBARRIER_ARRIVALS:
            sink.error(
                "M306",
                f"an mbarrier counts at most {MBARRIER_ARRIVALS} arrivals of warps, found {arrivals} for a phase of `{bar.name}`",
                bar.span,
                "the count of an mbarrier is the number of workers that arrive in a phase",
            )


def check_narrow_floats(
    tensors: Iterable[TensorParam], arrays: Iterable[tuple[SharedView, str | None, Stmt]], roles: list[Role], target: Target, sink: Sink
) -> None:
    """Report the first use of 8-bit floats on an architecture that converts none."""
    if target.has("narrow_floats"):
        return
    places = [(t.dtype, t.span) for t in tensors]
    places += [(view.dtype, stmt.span) for view, _, stmt in arrays]
    nodes = (n for role in roles for stmt in role.body for n in walk(stmt) if isinstance(n, Typed))
    places += [(n.type.dtype, n.span) for n in nodes if isinstance(n.type, TileType)]
    for dtype, span in places:
        if dtype.is_float and dtype.itemsize == 1:
            sink.error("S217", f"{dtype} needs {' or '.join(list_architectures('narrow_floats'))}, this kernel is for {target.name}", span)
            return


def check_fragments(roles: list[Role], sink: Sink) -> None:
    """Check that a role's registers hold a product's accumulator and its operand in registers at once."""
    for role in (r for r in roles if r.registers is not None):
        for node in (n for stmt in role.body for n in walk(stmt) if isinstance(n, Call)):
            call = call_of(node)
            if call is None or not call.op.traits.product:
                continue
            tiles = [t for t in (node.type, call.args["a"].type) if isinstance(t, TileType)]
            takes = [t.rows * t.cols * t.dtype.itemsize // (4 * role.threads) for t in tiles]
            if sum(takes) >= (role.registers or 0):
                parts = " and ".join(f"{n} for {t}" for n, t in zip(takes, tiles, strict=True))
                sink.error(
                    "M302",
                    f"role `{role.name}` has {role.registers} registers a thread, and this product takes {parts}",
                    node.span,
                    "raise registers= of the role, or use smaller tiles",
                    notes=[("registers= is given here", role.span)],
                )
                break
