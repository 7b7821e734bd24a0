"""Ways of roles, of joins of lanes, of syncs of a CTA, and of taking a work item, in which a warp's lanes join too."""

from __future__ import annotations

from xdsl.ir import Operation

from ..ir import machine_ops as machine
from ..ir import ops
from ..ir.exchanges import ReleaseSlot
from ..ir.synchronisation import BARRIERS, CtaSync, Join
from .role_facts import RoleFacts
from .ways import Verdict, Ways, fits, misfits

WAYS = Ways()
ELIDED, WITH_UNIT, WITH_ARRIVAL = "elided", "with the work item", "with the arrival"
IN_TWO_STEPS = "arrive early"
LANES = 32
JOINED, UNJOINED, ONE_LANE = "a joined warp", "a warp", "one lane"  # who arrives, or takes a work item


@WAYS.way("run a role", ONE_LANE)
def run_on_one_lane(role: RoleFacts) -> Verdict:
    """Run a role on one lane of its warp."""
    if role.single:
        return fits("one lane does each of its operations")
    if role.threads != LANES:
        return misfits("its workers are warpgroups")
    return misfits("an operation takes all lanes" if role.limits.has("one_lane_roles") else f"{role.limits.name} runs roles on all lanes")


@WAYS.way("run a role", "all lanes")
def run_on_all_lanes(role: RoleFacts) -> Verdict:
    """Run a role on all lanes of its warps."""
    return fits(f"tiles are spread over the {role.threads} lanes of a worker")


def find_join_before(op: Operation) -> Join | None:
    """Return the join of a warp's lanes, no more, that stands directly before an operation."""
    previous = op.prev_op
    return previous if isinstance(previous, Join) and previous.lanes.data != "none" else None


def is_arrival(op: Operation | None) -> bool:
    """Return whether an operation is an arrival at an mbarrier, which announces no bytes."""
    return isinstance(op, ops.Perform) and op.entry.effects.releases and not op.kind.hardware


@WAYS.way("join", ELIDED)
def elide(op: Join, role: RoleFacts | None) -> Verdict | None:
    """Emit nothing."""
    return fits(describe(op)) if op.lanes.data == "none" else None


@WAYS.way("join", WITH_UNIT)
def join_with_unit(op: Join, role: RoleFacts | None) -> Verdict | None:
    """Join in the function that takes a work item."""
    first = isinstance(op.next_op, ReleaseSlot) and op.prev_op is None
    return fits("the lanes of a warp have read the slot before one of them gives it back") if first else None


@WAYS.way("join", "bar.sync")
def join_warps(op: Join, role: RoleFacts | None) -> Verdict | None:
    """Join the warps of a worker at a hardware barrier; outside of roles only lanes of a warp join."""
    if role is None or op.lanes.data != "worker" or role.threads == 32:
        return None
    return fits(f"the {role.threads // 32} warps of the worker meet")


@WAYS.way("join", "__syncwarp")
def join_lanes(op: Join, role: RoleFacts | None) -> Verdict:
    """Join the lanes of each warp."""
    return fits(describe(op))


@WAYS.way("meet", IN_TWO_STEPS)
def meet_in_two_steps(op: CtaSync, kernel: ops.Kernel) -> Verdict | None:
    """Arrive for all CTAs of the cluster, and wait behind the scalars of the frame."""
    if op.behind.data != BARRIERS or kernel.cluster.data == 1:
        return None
    return fits("other CTAs use the barriers, and the scalars of the frame are computed while they arrive")


@WAYS.way("meet", "__syncthreads")
def meet_at_once(op: CtaSync, kernel: ops.Kernel) -> Verdict:
    """Let all threads of the CTA meet."""
    return fits("no other CTA takes part")


def describe(op: Join) -> str:
    """Return the argument for a join of few lanes."""
    return op.argument.data if op.argument is not None else "the worker is one warp"


@WAYS.way("take a work item", ONE_LANE)
def take_single(op: ops.ForUnits, role: RoleFacts) -> Verdict | None:
    """Take a work item by one lane."""
    return fits("one lane runs the role") if role.single else None


@WAYS.way("take a work item", JOINED)
def take_joined(op: ops.ForUnits, role: RoleFacts) -> Verdict | None:
    """Take a work item by all lanes of a warp, one of which gives the slot back."""
    release = next((inner for inner in op.body.block.ops if isinstance(inner, ReleaseSlot)), None)
    if release is None or find_join_before(release) is None:
        return None
    return fits("all lanes of a warp read the slot, and join before one gives it back")


@WAYS.way("take a work item", UNJOINED)
def take_unjoined(op: ops.ForUnits, role: RoleFacts) -> Verdict:
    """Take a work item by all lanes of a warp, although nothing keeps one from giving the slot back too early."""
    return fits("no join stands before the slot is given back")


def reads_queue(op: Operation) -> bool:
    """Return whether an operation is a loop over work items of a queue."""
    return isinstance(op, ops.ForUnits) and machine.queue_of(op) is not None
