"""Roles, work items, clusters."""

from __future__ import annotations

from ..syntax.types import I32, ErrorType, Scalar, Type, Void
from .base import CallContext, Param, op
from .rules import require_i32, require_known
from .traits import Traits


@op(
    "role",
    "orchestration",
    Param("name", "word in quotes"),
    Param("warps", "const i32", "", keyword=True),
    Param("warpgroups", "const i32", "", keyword=True),
    Param("registers", "const i32", "as at launch", keyword=True),
    where="declaration",
    spelling="with role",
    traits=Traits(makes="workers"),
    doc="The block runs on warps=n workers of 32 threads, or warpgroups=n of 128; `as w` numbers the workers 0 to n-1. "
    "registers= sets the 32-bit registers of a thread (sm_90a). Roles of warps with equal registers= share "
    "warpgroups, of four warps each.",
)
def _role(cx: CallContext) -> Type:
    return Void()


@op(
    "tiles",
    "orchestration",
    Param("n", "i32"),
    Param("dynamic", "const bool", "False", keyword=True),
    where="declaration",
    traits=Traits(declares=True, makes="units"),
    doc="Deals units of work 0 to n-1 to the clusters; `for t in work` gives all workers of a cluster the same units, "
    "in increasing order. Static: cluster c of G gets c, c + G, ...; dynamic: a free cluster gets the next unit. "
    "The call fixes the grid: one in a kernel.",
)
def _tiles(cx: CallContext) -> Type:
    ok = require_i32(cx, "n")
    if cx.has("dynamic"):
        require_known(cx, "dynamic", bool)
    return Void() if ok else ErrorType()


@op(
    "cta_rank",
    "orchestration",
    needs=("clusters",),
    where="any",
    doc="The number of the CTA within its cluster, from 0.",
    traits=Traits(one_lane=True, rank=True),
)
def _cta_rank(cx: CallContext) -> Type:
    return Scalar(I32)
