"""Asynchronous memory: bulk copies and stores of the copy engine, cp.async."""

from __future__ import annotations

from ..syntax.types import PANEL_BYTES, BarrierType, ErrorType, SharedView, TileType, Type, Void
from .base import Access, CallContext, Effects, Param, op
from .rules import check_cluster, refuse_sums_of_bytes, require_box, require_known, require_shared
from .traits import Traits

HINTS = ("evict_first", "evict_last", "evict_normal")


def _check_shapes(cx: CallContext) -> SharedView | None:
    """Check that a copy's box and its shared view have the same shape; return the view."""
    box, view = require_box(cx, "box"), require_shared(cx, "shared")
    if box is None or view is None:
        return None
    if view.transposed:
        cx.error("T120", "a transposed view is an operand of a product or of a load", "shared", "copy to the view without .T")
        return None
    if box.view.dtype != view.dtype:
        cx.error("T124", f"a copy converts nothing: the box is of {box.view.dtype}, the shared view of {view.dtype}", "shared")
        return None
    if (box.rows, box.cols) != view.dims:
        cx.error(
            "T125",
            f"the box has {box.rows} rows of {box.cols} and the shared view {view.dims[0]} rows of {view.dims[1]}",
            "box",
            "in a copy all dims but the last flatten into rows",
        )
        return None
    if box.cols * view.dtype.itemsize % 16:
        cx.error("T126", f"a row of a copy is a multiple of 16 bytes, found {box.cols * view.dtype.itemsize}", "box")
        return None
    return view


def _check_bulk(cx: CallContext) -> bool:
    view = _check_shapes(cx)
    if view is None:
        return False
    cols = view.dims[1]
    if cols * view.dtype.itemsize % PANEL_BYTES:
        width = PANEL_BYTES // view.dtype.itemsize
        cx.error(
            "T127",
            f"a bulk copy moves whole panels of {PANEL_BYTES} bytes: columns in multiples of {width} {view.dtype}, found {cols}",
            "box",
        )
        return False
    tensor = cx.type("box")
    longest = cx.target.box_elements
    sides = [d for d in tensor.dims[: None if view.dims[0] == 1 else -1] if isinstance(d, int)]  # type: ignore[union-attr]
    if any(d > longest for d in sides):
        cx.error("T128", f"a side of a bulk copy's box has at most {longest} elements, found {max(sides)}", "box", "split the copy")
        return False
    return True


BOX, SHARED = Param("box", "box of a tensor"), Param("shared", "Shared view")


@op(
    "copy_async.bulk",
    "asynchronous memory",
    BOX,
    SHARED,
    Param("bar", "mbarrier"),
    Param("cluster", 'const bool, or "x" or "y"', "False", keyword=True),
    Param("hint", "word in quotes", "none", keyword=True),
    needs=("bulk_copies",),
    spelling="copy_async",
    effects=Effects(accesses=(Access("box", "read", "async", late=True), Access("shared", "write", "async", late=True)), completes="bar"),
    traits=Traits(one_lane=True, joins_worker=True),
    doc="The copy engine copies a box to shared memory, at any time from now. Landing subtracts the bytes of the full "
    "box from what the barrier's phase expects; elements outside of the tensor read 0. cluster=True: the copy "
    'lands at the same place of every CTA of the cluster ("x": with the same y; "y": the same x), on '
    "each CTA's barrier. "
    'hint: "evict_first", "evict_last" or "evict_normal" for the L2 cache.',
)
def _copy_bulk(cx: CallContext) -> Type:
    bar = cx.type("bar")
    if not isinstance(bar, (BarrierType, ErrorType)) or (
        isinstance(bar, BarrierType) and (bar.kind != "mbarrier" or bar.stages is not None)
    ):
        cx.error("T129", f"a bulk copy lands on one mbarrier, found {bar}", "bar", "pick a stage: bar[s]")
    check_cluster(cx)
    if cx.has("hint"):
        word = require_known(cx, "hint", str)
        if word is not None and word not in HINTS:
            cx.error("T130", f"`hint` is one of {', '.join(HINTS)}, found {word}", "hint")
    _check_bulk(cx)
    return Void()


@op(
    "copy_async.cp",
    "asynchronous memory",
    Param("box", "box of a tensor, or subscript"),
    SHARED,
    needs=("cp_async",),
    spelling="copy_async",
    effects=Effects(
        accesses=(Access("box", "read", "generic", late=True), Access("shared", "write", "generic", late=True)), group="cp_async"
    ),
    doc="cp.async of a box to shared memory, in the worker's open group (see copy_commit). After a wait it is an ordinary "
    "write: the tensor core of sm_90a needs a fence_async. A subscript X[i, c + cols(n)] gathers rows i [R, 1]; those "
    "outside of the tensor read 0.",
)
def _copy_cp(cx: CallContext) -> Type:
    if isinstance(cx.type("box"), TileType) and cx.is_subscript("box"):
        _check_gather(cx)
    else:
        _check_shapes(cx)
    return Void()


def _check_gather(cx: CallContext) -> None:
    """Check that the elements of a subscript have the shape and dtype of the shared view, in whole chunks."""
    elements, view = cx.type("box"), require_shared(cx, "shared")
    assert isinstance(elements, TileType)
    if view is None:
        return
    if view.transposed:
        cx.error("T120", "a transposed view is an operand of a product or of a load", "shared", "copy to the view without .T")
    elif elements.dtype != view.dtype:
        cx.error("T124", f"a copy converts nothing: the elements are {elements.dtype}, the shared view of {view.dtype}", "shared")
    elif (elements.rows, elements.cols) != view.dims:
        cx.error(
            "T125",
            f"the subscript has {elements.rows} rows of {elements.cols} and the shared view {view.dims[0]} rows of {view.dims[1]}",
            "box",
            "an index tile for each row, and columns c + cols(n)",
        )
    elif elements.cols * view.dtype.itemsize % 16:
        cx.error("T126", f"a row of a copy is a multiple of 16 bytes, found {elements.cols * view.dtype.itemsize}", "box")


@op(
    "copy_commit",
    "asynchronous memory",
    needs=("cp_async",),
    effects=Effects(commits="cp_async"),
    doc="Closes the worker's open group of cp.async copies.",
)
def _commit(cx: CallContext) -> Type:
    return Void()


@op(
    "copy_wait",
    "asynchronous memory",
    Param("n", "const i32"),
    needs=("cp_async",),
    effects=Effects(drains="cp_async"),
    doc="Waits until at most the worker's n last closed groups of copies are in flight (cp.async.wait_group n).",
)
def _copy_wait(cx: CallContext) -> Type:
    return _check_remaining(cx)


def _check_remaining(cx: CallContext) -> Type:
    """Check the number of groups that a wait leaves in flight."""
    n = require_known(cx, "n") if cx.has("n") else 0
    if n is not None and n < 0:
        return cx.error("T103", f"`n` must not be negative, found {n}", "n")
    return Void()


@op(
    "store_async",
    "asynchronous memory",
    SHARED,
    BOX,
    Param("add", "const bool", "False", keyword=True),
    needs=("bulk_copies",),
    effects=Effects(
        accesses=(Access("shared", "read", "async", late=True), Access("box", "write", "async", late=True)), group="bulk_store"
    ),
    traits=Traits(one_lane=True, joins_worker=True),
    doc="The copy engine stores a shared view to a box, and nothing outside of the tensor. add=True adds atomically "
    "(f32, f16, bf16, i32). A worker that did ordinary stores to the view calls fence_async() first.",
)
def _store_async(cx: CallContext) -> Type:
    adds = cx.has("add") and require_known(cx, "add", bool)
    if _check_bulk(cx) and adds and cx.type("shared").dtype.itemsize < 2:  # type: ignore[union-attr]
        refuse_sums_of_bytes(cx, "shared")
    return Void()


@op(
    "store_wait",
    "asynchronous memory",
    Param("n", "const i32", "0"),
    needs=("bulk_copies",),
    effects=Effects(drains="bulk_store"),
    traits=Traits(one_lane=True, joins_worker=True),
    doc="Waits until at most the worker's n last bulk stores still read shared memory (cp.async.bulk.wait_group.read "
    "n). The kernel's end waits for their writes.",
)
def _store_wait(cx: CallContext) -> Type:
    return _check_remaining(cx)
