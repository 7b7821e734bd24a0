"""Roles, work items, clusters."""

from __future__ import annotations

from ..syntax.types import I32, ErrorType, Scalar, Type, Void
from .base import CallContext, Param, op
from .rules import require_i32, require_known
from .traits import Traits


@op(
    "role",
    "orchestration",
    Param("name", "word"),
    Param("warps", "const i32", "", keyword=True),
    Param("warpgroups", "const i32", "", keyword=True),
    Param("registers", "const i32", "the launch's", keyword=True),
    where="declaration",
    spelling="with role",
    traits=Traits(makes="workers"),
    doc="The workers that run the block: warps=n workers of 32 threads, or warpgroups=n of 128; `as w` numbers them 0 .. n-1. registers: 32-bit registers of a thread (sm_90a). "
    "Roles of warps share a warpgroup, four warps each, while they agree on registers.",
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
    doc="The units of work of the launch, once per kernel; `for t in work` gives every worker of a cluster the same increasing sequence, and all sequences partition range(n). "
    "Static: c, c + G, ...; dynamic: whoever is free takes the next. It fixes the grid.",
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
