"""Roles that run on one lane of their warp, since one lane can do all their operations for the worker."""

from __future__ import annotations

from xdsl.ir import Operation

from ...ops.limits import TARGETS
from ..ir import ops
from ..ir.ir_types import is_tile
from ..ir.ir_walk import every
from ..ir.machine_functions import Function


def runs_on_one_lane(role: ops.Role) -> bool:
    """Return whether a role runs on one lane of its warp; only on targets that are asynchronous enough."""
    kernel = role.parent_op()
    assert isinstance(kernel, ops.Kernel)
    return role.threads.data == 32 and TARGETS[kernel.arch.data].has("one_lane_roles") and all(map(_is_single_lane, every(role)))


def _is_single_lane(op: Operation) -> bool:
    if any(map(is_tile, op.results)) or any(is_tile(a) for region in op.regions for block in region.blocks for a in block.args):
        return False
    if isinstance(op, (ops.Apply, ops.Perform)):
        return op.entry.traits.one_lane
    return isinstance(op, (ops.Constant, ops.At, ops.Yield, ops.For, ops.ForUnits, ops.If)) or (isinstance(op, Function) and op.ONE_LANE)


__all__ = ["runs_on_one_lane"]
