"""Ways of the loop over a thread's elements of a tile: one by one, or four neighbours that share work."""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.ir import Operation, SSAValue

from ...syntax.types import F32
from ..ir import ops
from ..ir.ir_types import TileT, dtype_of
from ..ir.ir_walk import is_inlined
from ..ir.machine_tiles import ByReciprocal, SharedTanh, can_share
from .ways import Verdict, Ways, fits, misfits

WAYS = Ways()
BRANCH_COST_THRESHOLD = 10  # instructions of one side of a choice from which on nvcc would branch around it
BOTH_SIDES = "both sides"
Site = ByReciprocal | SharedTanh | ops.Apply


def find_sites(op: Operation) -> list[Site]:
    """Return the divisions and functions of angles that are computed with an operation, and share work, operands first."""
    return list(dict.fromkeys(_iterate_sites(op)))


def _iterate_sites(op: Operation) -> Iterator[Site]:
    for operand in op.operands:
        t = operand.type
        if isinstance(t, TileT) and t.layout.is_accumulator and is_inlined(operand) and isinstance(operand.owner, Operation):
            yield from _iterate_sites(operand.owner)
    if isinstance(op, SharedTanh) or (isinstance(op, ByReciprocal) and op.shared is not None):
        yield op
    if isinstance(op, ops.Apply) and op.kind.quarters is not None and can_share(op.result.type):
        yield op


def is_computed_in_fours(op: Operation) -> bool:
    """Return whether an operation is the last of an expression that shares work between neighbours."""
    t = op.results[0].type if len(op.results) == 1 else None
    if not isinstance(t, TileT) or not t.layout.is_accumulator or isinstance(op, ops.Perform) or op.regions:
        return False
    in_reader = is_inlined(op.results[0]) and all(isinstance(u.operation, (ops.Apply, ops.At, ops.Perform)) for u in op.results[0].uses)
    return not in_reader and bool(find_sites(op))


@WAYS.way("tile", "polynomials or fours")
def compute_small(op: Operation) -> Verdict | None:
    """Compute polynomials where no thread of the warp has a large argument, else four neighbours at a time.

    The arguments must stand in registers; they would be computed twice otherwise.
    """
    sites, t = find_sites(op), op.results[0].type
    if not any(isinstance(site, SharedTanh) for site in sites):
        return None
    if len(sites) > 1:
        return misfits(f"{len(sites)} values are shared, not one")
    (site,) = sites
    assert isinstance(site, SharedTanh) and isinstance(t, TileT)
    if is_inlined(site.x):
        return misfits("the argument would be computed twice")
    return misfits("results are packed in pairs") if t.is_packed else fits("a warp whose arguments are all small takes a short polynomial")


@WAYS.way("tile", "fours")
def compute_fours(op: Operation) -> Verdict:
    """Compute four neighbours at a time, which share a reciprocal or the branch for large angles."""
    sites = find_sites(op)
    angles = sum(isinstance(site, ops.Apply) for site in sites)
    shared = [f"{n} {name}" for n, name in ((len(sites) - angles, "shared reciprocals"), (angles, "functions of angles")) if n]
    return fits(f"four neighbours of a row have {' and '.join(shared)}")


# ---- a choice between two elements
@WAYS.way("choose", BOTH_SIDES)
def compute_both(op: ops.Apply) -> Verdict | None:
    """Compute both sides, and select by a function that nvcc does not see through."""
    if dtype_of(op.result) != F32:
        return None
    cost = max(estimate_cost(a) for a in op.arguments[1:])
    if cost < BRANCH_COST_THRESHOLD:
        return misfits(f"a side takes {cost} instructions, and from {BRANCH_COST_THRESHOLD} on nvcc would branch around it")
    return fits(f"a side takes {cost} instructions, and nvcc would branch around it for each element")


@WAYS.way("choose", "conditional")
def choose_element(op: ops.Apply) -> Verdict:
    """Leave the choice to nvcc."""
    return fits("both sides are cheap" if dtype_of(op.result) == F32 else f"elements are {dtype_of(op.result).name}")


def estimate_cost(value: SSAValue) -> int:
    """Estimate the instructions that a value takes where it is read."""
    op = value.owner
    return op.kind.cost + sum(map(estimate_cost, op.arguments)) if is_inlined(value) and isinstance(op, ops.Apply) else 0
