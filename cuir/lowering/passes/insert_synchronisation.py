"""Insert joins of lanes, proxy fences and syncs around roles, which order accesses of different lanes and engines.

The threads of a worker join before a thread accesses memory that another has accessed. If no warp accesses another's
rows, only the lanes of a warp join.

Fences of registers stand around waits for products, of which nvcc does not know that they write registers.

Lanes also join around what one lane does for all: stores of scalars, copies and stores of
the engine, waits for these. Each warp joins before it arrives at an mbarrier or gives a queue's slot back, and all
warps around their exchange of columns. A proxy fence precedes the arrivals that `analyses/arrivals.py` names. Without
this pass results are undefined.
"""

from __future__ import annotations

from xdsl.dialects.builtin import BoolAttr, DictionaryAttr
from xdsl.ir import Operation, SSAValue

from ...ops.base import PRODUCTS
from ..analyses.arrivals import awaits_all_signals, find_fenced_arrivals
from ..analyses.liveness import Liveness
from ..analyses.memory import Memory, iterate_accesses, iterate_evaluated
from ..analyses.stores import stores_by_warps
from ..analyses.uniformity import runs_on_one_lane
from ..analyses.warp_sync import COPIES, find_warp_syncs, is_scalar_store
from ..ir import ops
from ..ir.exchanges import ReleaseSlot, TakeColumns
from ..ir.ir_types import TileT
from ..ir.ir_walk import every, is_inlined, unmark
from ..ir.synchronisation import (
    ALL_AWAITED,
    APART,
    ARRIVAL_OF_WARPS,
    BARRIERS,
    COLUMNS,
    LATER,
    ONE_LANE,
    OWN_ROWS,
    ROLES,
    SAME_LANES,
    UNTOUCHED,
    Join,
    ProxyFence,
    RegisterFence,
    Synchronisation,
    cluster_sync,
    cta_sync,
    join,
)
from ..select.frame_layout import lay_out_frame
from ..select.runs import find_run_start
from ..select.ways import IN_REGISTERS, VALUE, Selection
from .rewriting import before

SYNCHRONISES = True  # validation follows the order of lanes from here on


def run(kernel: ops.Kernel) -> None:
    """Insert the synchronisation of each role, and of the cluster."""
    memory = Memory(kernel)
    for role in kernel.roles:
        _insert_into_role(role, memory)
        _fence_registers(role)
    _insert_around_roles(kernel)


def _insert_around_roles(kernel: ops.Kernel) -> None:
    """Insert the syncs of the CTA, and of the cluster, before and behind the roles."""
    frame, first, end = lay_out_frame(kernel), kernel.roles[0], kernel.body.block.last_op
    assert end is not None
    start, finish = list[Synchronisation](), list[Synchronisation]()
    if frame.initialises:
        start.append(cta_sync(BARRIERS))
    if frame.columns:
        start.append(cta_sync(COLUMNS))
        finish += [join("warps", APART), cta_sync(ROLES)]
    if kernel.cluster.data > 1 and awaits_all_signals(kernel):
        finish.append(cluster_sync(ALL_AWAITED))
    elif kernel.cluster.data > 1:
        finish += [join("warps", APART), cluster_sync()]
    for at, syncs in ((first, start), (end, finish)):
        for sync in syncs:
            before(at, sync)
            sync.location = kernel.location


def _insert_into_role(role: ops.Role, memory: Memory) -> None:
    syncs, fenced, by_warps = find_warp_syncs(role, memory), find_fenced_arrivals(role, memory), stores_by_warps(role, memory)
    one_lane = runs_on_one_lane(role)

    def make_join(op: Operation) -> Join:
        """Return the join that an operation needs of its worker."""
        if one_lane:
            return join("none", ONE_LANE)
        return join("warps", OWN_ROWS) if by_warps and isinstance(op, ops.Perform) and _is_bulk_store(op) else join("worker")

    def make_arrival_join() -> Join:
        """Return the join before an arrival, for which each warp arrives."""
        if one_lane:
            return join("none", ONE_LANE)
        return join("worker") if role.threads.data == 32 else join("warps", ARRIVAL_OF_WARPS)

    for op in list(every(role)):
        if op in syncs.inside:
            _compute_before(op)
        if op in syncs.before or op in syncs.inside:
            _insert_before_run(op, join("none", ONE_LANE) if one_lane else join("worker"))
        elif op in syncs.warps:
            _insert_before_run(op, join("warps", OWN_ROWS))
        elif op in syncs.elided:
            _insert_before_run(op, join("none", SAME_LANES))
        elif op in syncs.untouched:
            before(op, join("none", UNTOUCHED))
        if isinstance(op, TakeColumns):  # another exchange may follow, in the same memory
            before(op, join("worker"))
            _after(op, join("worker"))
        if isinstance(op, ReleaseSlot):
            before(op, make_arrival_join())
        if not isinstance(op, ops.Perform):
            continue
        effects = op.entry.effects
        if by_warps and _is_bulk_store(op):
            op.properties["consts"] = DictionaryAttr({**op.consts.data, "by_warps": BoolAttr.from_bool(True)})
        if effects.drains == COPIES:
            _after(op, join("none", LATER))
        if is_scalar_store(op):
            before(op, make_join(op))
            if any(a.writes and isinstance(a.array, ops.Shared) for a in iterate_accesses(op)):
                _after(op, make_join(op))
        elif op.kind.joins_worker and effects.drains:
            _after(op, make_join(op))
        elif op.kind.joins_worker and (effects.group or effects.completes) and find_run_start(op) is op:
            before(op, make_join(op))
        if op in fenced:
            before(op, ProxyFence())
        if effects.arrives and not op.kind.hardware and not effects.completes:
            before(op, make_arrival_join())


def _fence_registers(role: ops.Role) -> None:
    """Insert fences of the registers that are written while products are in flight around waits for these."""
    waits = [op for op in every(role) if isinstance(op, ops.Perform) and op.entry.effects.drains == PRODUCTS]
    liveness = Liveness(role.body.block) if waits else None
    for wait in waits:
        assert liveness is not None
        live = liveness.after[wait]
        overlapped = _collect_overlapped_tiles(wait, live)
        if overlapped:
            before(wait, RegisterFence(operands=[overlapped]))
        if fenced := [*(r for r in wait.results if r in live), *overlapped]:
            _after(wait, RegisterFence(operands=[fenced]))


def _collect_overlapped_tiles(wait: ops.Perform, live: frozenset[SSAValue]) -> list[SSAValue]:
    """Return the tiles of floats computed while a wait's products were in flight, and live after it."""
    sources, tiles, op = set(wait.arguments), list[SSAValue](), wait.prev_op
    while op is not None and not any(r in sources for r in op.results):
        for r in op.results if not (isinstance(op, ops.Perform) and op.entry.effects.group) else ():
            if isinstance(r.type, TileT) and r.type.layout.is_fragment and r.type.element.is_float and not is_inlined(r) and r in live:
                tiles.append(r)
        op = op.prev_op
    return tiles[::-1]


def _is_bulk_store(op: ops.Perform) -> bool:
    return "bulk_store" in (op.entry.effects.group, op.entry.effects.drains)


def _after(op: Operation, new: Operation) -> None:
    assert op.parent is not None
    new.location = op.location
    op.parent.insert_op_after(new, op)


def _compute_before(op: Operation) -> None:
    """Give registers to what a store reads from memory that it writes, so that a join fits between."""
    for part in list(iterate_evaluated(op)):
        if part is not op and isinstance(part, ops.Perform):
            unmark(part)
            Selection(IN_REGISTERS, "lanes meet between its read and the store").record(part, VALUE)


def _insert_before_run(op: Operation, new: Join) -> None:
    """Insert a join before an operation, or before the products that are issued together with it."""
    start = find_run_start(op)
    previous = start.prev_op
    if start is not op and isinstance(previous, Join):  # of an earlier product of the run
        if new.lanes.data == "worker":
            previous.properties.clear()
            previous.properties.update(new.properties)
        return
    before(start, new)
