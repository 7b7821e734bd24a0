"""Barriers and fences.

State and rules of phases: docs/semantics.md.
"""

from __future__ import annotations

from ..syntax.types import BarrierType, ErrorType, Type, Void
from .base import CallContext, Effects, Param, op
from .rules import check_cluster, require_i32, require_known
from .traits import Traits

_N, _STAGES = Param("n", "const i32"), Param("stages", "const i32", "one barrier", keyword=True)

_WARPS = Param("warps", "const i32", "the warps of n workers", keyword=True)


def _declare(cx: CallContext, kind: str) -> Type:
    n = require_known(cx, "n")
    stages = require_known(cx, "stages") if cx.has("stages") else None
    for arg, value in (("n", n), ("stages", stages)):
        if value is not None and value <= 0:
            return cx.error("T104", f"`{arg}` must be positive, found {value}", arg)
    return ErrorType() if n is None or (cx.has("stages") and stages is None) else BarrierType(kind, stages)


@op(
    "mbarrier",
    "sync",
    _N,
    _STAGES,
    needs=("mbarriers",),
    where="declaration",
    traits=Traits(declares=True, makes="barrier"),
    doc="A barrier in shared memory. A phase ends when n workers of one role have arrived (with arrive(cluster=True): "
    "of all CTAs that arrive) and all bytes that it expects have landed. stages=k: a ring of k barriers.",
)
def _mbarrier(cx: CallContext) -> Type:
    return _declare(cx, "mbarrier")


@op(
    "named_barrier",
    "sync",
    _N,
    _STAGES,
    _WARPS,
    where="declaration",
    traits=Traits(declares=True, makes="barrier", hardware=True),
    doc="A hardware barrier: n arrivals of workers complete it; sync arrives and waits. Arrivals left over at the end are "
    "legal. The hardware counts warps: if roles of warps and of warpgroups share the barrier, warps=k says how "
    "many warps a phase has, and the n workers of each phase must have k warps (S406).",
)
def _named_barrier(cx: CallContext) -> Type:
    if cx.has("warps") and (warps := require_known(cx, "warps")) is not None and warps <= 0:
        return cx.error("T104", f"`warps` must be positive, found {warps}", "warps")
    return _declare(cx, "named_barrier")


_BAR = Param("bar", "mbarrier")


def _require_single(cx: CallContext) -> None:
    bar = cx.type("bar")
    if isinstance(bar, BarrierType) and bar.stages is not None:
        cx.error("T145", f"this is a ring of {bar.stages} barriers", "bar", "pick a stage: bar[s]")


@op(
    "mbarrier.expect",
    "sync",
    _BAR,
    Param("bytes", "i32"),
    needs=("mbarriers",),
    effects=Effects(arrives="bar", expects="bytes"),
    traits=Traits(one_lane=True),
    spelling="bar.expect",
    doc="Arrives once, and adds `bytes` to what the phase expects.",
)
def _expect(cx: CallContext) -> Type:
    _require_single(cx)
    require_i32(cx, "bytes")
    return Void()


@op(
    "mbarrier.arrive",
    "sync",
    _BAR,
    Param("cluster", 'const bool, or "x" or "y"', "False", keyword=True),
    needs=("mbarriers",),
    effects=Effects(arrives="bar"),
    traits=Traits(one_lane=True),
    spelling="bar.arrive",
    doc="Arrives once (mbarrier.arrive by each warp): all earlier work of the worker happens before what follows "
    'a wait for this phase. cluster=True: at this barrier of every CTA of the cluster ("x": with the same y; '
    '"y": the same x).',
)
def _arrive(cx: CallContext) -> Type:
    _require_single(cx)
    check_cluster(cx)
    return Void()


@op(
    "mbarrier.wait",
    "sync",
    _BAR,
    Param("parity", "i32"),
    needs=("mbarriers",),
    effects=Effects(waits="bar"),
    traits=Traits(one_lane=True),
    spelling="bar.wait",
    doc="Waits for the end of a phase of this parity: the first not before the last phase that the worker knows "
    "complete. On a fresh barrier, wait(1) returns immediately (a loop of mbarrier.try_wait). It is an error if "
    "the barrier can be two phases (a lap) ahead.",
)
def _wait(cx: CallContext) -> Type:
    _require_single(cx)
    require_i32(cx, "parity")
    value = cx.value("parity")  # type: ignore[attr-defined]
    if value is not None and value not in (0, 1):
        cx.error("T146", f"a parity is 0 or 1, found {value}", "parity", "phase % 2")
    return Void()


_NAMED = Param("bar", "named_barrier")


@op(
    "named_barrier.sync",
    "sync",
    _NAMED,
    effects=Effects(arrives="bar", waits="bar"),
    traits=Traits(joins_worker=True, hardware=True),
    spelling="bar.sync",
    doc="Arrives and waits for the phase's end (bar.sync).",
)
def _named_sync(cx: CallContext) -> Type:
    _require_single(cx)
    return Void()


@op(
    "named_barrier.arrive",
    "sync",
    _NAMED,
    effects=Effects(arrives="bar"),
    traits=Traits(hardware=True),
    spelling="bar.arrive",
    doc="Arrives without waiting (bar.arrive).",
)
def _named_arrive(cx: CallContext) -> Type:
    _require_single(cx)
    return Void()


@op(
    "sync",
    "sync",
    effects=Effects(joins=True),
    traits=Traits(joins_worker=True),
    doc="Waits for all workers of the CTA (__syncthreads).",
)
def _sync(cx: CallContext) -> Type:
    return Void()


@op(
    "fence_async",
    "sync",
    Param("tensors", "const bool", "False", keyword=True),
    needs=("proxies",),
    effects=Effects(fences=True),
    traits=Traits(one_lane=True),
    doc="Makes the worker's earlier ordinary stores and cp.async copies to shared memory visible to the tensor core "
    "and the copy engine (fence.proxy.async.shared::cta). If another worker issues the product or copy, a barrier "
    "must follow. tensors=True: also stores to tensors (fence.proxy.async), before a bulk access of them.",
)
def _fence(cx: CallContext) -> Type:
    if cx.has("tensors"):
        require_known(cx, "tensors", bool)
    return Void()
