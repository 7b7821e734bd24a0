"""Ordinary memory: arrays in shared memory, new register tiles, loads and stores."""

from __future__ import annotations

from ..syntax.types import BOOL, F32, I32, DType, ErrorType, GlobalView, Scalar, SharedView, TileType, Type, Void
from .base import Access, CallContext, Effects, Param, op
from .rules import (
    broadcast,
    has_error_type,
    refuse_rank,
    refuse_sums_of_bytes,
    require_box,
    require_dims,
    require_known,
    require_positive,
    require_shared,
    require_tile_shape,
)
from .traits import Traits


@op(
    "shared",
    "memory",
    Param("dtype", "dtype"),
    Param("dims", "[dims]"),
    Param("over", "shared array", "nothing", keyword=True),
    where="declaration",
    traits=Traits(declares=True, makes="array"),
    doc="An array in the CTA's shared memory, undefined until written. Rows of multiples of 128 bytes are laid out as "
    "swizzled panels (128 bytes of all rows), which bulk copies and products need: a slice of rows is contiguous "
    "in each panel. Other arrays, and stages of one row, are row-major, with rows padded to 16 bytes. A stage of a "
    "ring is contiguous. `over=x` puts the array on the first bytes of x; a write to one makes these bytes of the "
    "other undefined.",
)
def _shared(cx: CallContext) -> Type:
    dtype, shape = require_known(cx, "dtype", DType), require_dims(cx, "dims")
    if cx.has("over") and not isinstance(cx.type("over"), (SharedView, ErrorType)):
        return cx.error("T106", f"`over` must be a shared array, found {cx.type('over')}", "over")
    return ErrorType() if dtype is None or shape is None else SharedView(dtype, shape, shape[-1])


@op(
    "nbytes",
    "memory",
    Param("x", "Shared view"),
    where="any",
    traits=Traits(one_lane=True, measures=True),
    doc="The bytes (i32) of a shared array or view, with padding: what a bulk copy into the view counts on its barrier.",
)
def _nbytes(cx: CallContext) -> Type:
    t = cx.type("x")
    if has_error_type(t):
        return ErrorType()
    return Scalar(I32) if isinstance(t, SharedView) else cx.error("T106", f"`x` must lie in shared memory, found {t}", "x")


@op(
    "zeros",
    "memory",
    Param("dtype", "dtype"),
    Param("dims", "[R, C]"),
    doc="A register tile of zeros.",
    traits=Traits(constant=0),
)
def _zeros(cx: CallContext) -> Type:
    dtype, shape = require_known(cx, "dtype", DType), require_tile_shape(cx, "dims")
    return ErrorType() if dtype is None or shape is None else TileType(dtype, *shape)


@op(
    "full",
    "memory",
    Param("dtype", "dtype"),
    Param("dims", "[R, C]"),
    Param("value", "scalar"),
    doc="A register tile of one value.",
    traits=Traits(takes=("value", "dtype"), repeats="value"),
)
def _full(cx: CallContext) -> Type:
    dtype, shape, value = require_known(cx, "dtype", DType), require_tile_shape(cx, "dims"), cx.type("value")
    if dtype is None or shape is None or has_error_type(value):
        return ErrorType()
    if value != Scalar(dtype):
        return cx.error("T111", f"`value` must be a scalar of {dtype}, found {value}", "value")
    return TileType(dtype, *shape)


@op(
    "rows",
    "memory",
    Param("n", "const i32"),
    doc="The row numbers 0 to n-1 as an i32 tile [n, 1].",
    traits=Traits(index_of="row"),
)
def _rows(cx: CallContext) -> Type:
    n = require_positive(cx, "n")
    return ErrorType() if n is None else TileType(I32, n, 1)


@op(
    "cols",
    "memory",
    Param("n", "const i32"),
    doc="The column numbers 0 to n-1 as an i32 tile [1, n].",
    traits=Traits(index_of="column"),
)
def _cols(cx: CallContext) -> Type:
    n = require_positive(cx, "n")
    return ErrorType() if n is None else TileType(I32, 1, n)


@op(
    "load",
    "memory",
    Param("view", "Shared view or box of a tensor"),
    effects=Effects(accesses=(Access("view", "read", "generic"),)),
    traits=Traits(cost=10),
    doc="Reads a view into registers; load(x.T) reads the transpose. All dims of a tensor's box but the last flatten "
    "into rows; elements outside of the tensor read 0.",
)
def _load(cx: CallContext) -> Type:
    t = cx.type("view")
    if has_error_type(t):
        return ErrorType()
    if isinstance(t, SharedView):
        if len(t.dims) != 2:
            return refuse_rank(cx, "view", t)
        return TileType(t.dtype, *t.dims)
    box = require_box(cx, "view")
    return ErrorType() if box is None else TileType(box.view.dtype, box.rows, box.cols)


@op(
    "store",
    "memory",
    Param("place", "view or subscript"),
    Param("tile", "tile or scalar"),
    Param("mask", "bool tile", "True", keyword=True),
    Param("add", "const bool", "False", keyword=True),
    effects=Effects(accesses=(Access("place", "write", "generic"),)),
    traits=Traits(takes=("tile", "place")),
    doc="Writes a tile to a view, or scatters it to a subscript with index tiles; elements outside of a tensor, or "
    "where mask is False, are not written. A place with scalar indices takes a scalar. add=True adds atomically, "
    "only to tensors.",
)
def _store(cx: CallContext) -> Type:
    place, tile = cx.type("place"), cx.type("tile")
    adds = cx.has("add") and require_known(cx, "add", bool)
    if has_error_type(place, tile):
        return ErrorType()
    if adds and getattr(tile, "dtype", F32).itemsize < 2:
        return refuse_sums_of_bytes(cx, "tile")
    if cx.has("mask"):
        mask = cx.type("mask")
        if not isinstance(mask, ErrorType) and (not isinstance(mask, TileType) or mask.dtype != BOOL):
            return cx.error("T121", f"`mask` must be a bool tile, found {mask}", "mask")
    if isinstance(place, SharedView):
        if adds:
            return cx.error("T122", "add=True is for tensors, found a shared array", "place")
        if place.transposed:
            return cx.error("T120", "a transposed view is read, not written", "place", "store through the view without .T")
        want: Type = TileType(place.dtype, *place.dims) if len(place.dims) == 2 else ErrorType()
        if isinstance(want, ErrorType):
            return refuse_rank(cx, "place", place)
    elif isinstance(place, GlobalView):
        box = require_box(cx, "place")
        if box is None:
            return ErrorType()
        want = TileType(place.dtype, box.rows, box.cols)
    elif not cx.is_subscript("place"):
        return cx.error(
            "T165",
            f"a place in memory is needed, found {place}",
            "place",
            "a view of a shared array, a box of a tensor, or a subscript; a name is bound by `=`",
        )
    else:
        want = place  # a subscript: a tile (scatter) or a scalar
    if tile != want:
        hint = f"cast(x, {want.dtype})" if isinstance(want, (TileType, Scalar)) and getattr(tile, "dtype", None) != want.dtype else None
        return cx.error("T123", f"the place takes {want}, found {tile}", "tile", hint)
    if cx.has("mask") and isinstance(tile, TileType) and broadcast_mask(cx, tile) != (tile.rows, tile.cols):
        return cx.error("T113", f"the mask does not broadcast to {tile}", "mask")
    return Void()


def broadcast_mask(cx: CallContext, tile: TileType) -> tuple[int, int] | None:
    mask = cx.type("mask")
    return broadcast((mask.rows, mask.cols), (tile.rows, tile.cols)) if isinstance(mask, TileType) else (tile.rows, tile.cols)


@op(
    "transpose_interleaved",
    "memory",
    Param("source", "Shared view [K, C] of 8-bit floats"),
    Param("target", "Shared view [C, K]"),
    needs=("wgmma",),
    effects=Effects(accesses=(Access("source", "read", "generic"), Access("target", "write", "generic"))),
    traits=Traits(interleaves=True),
    doc="Writes a view's transpose, its columns in the order of interleave. K is a multiple of 32, C of 16.",
)
def _transpose_interleaved(cx: CallContext) -> Type:
    source, target = require_shared(cx, "source"), require_shared(cx, "target")
    if source is None or target is None:
        return ErrorType()
    for arg, view in (("source", source), ("target", target)):
        if view.transposed:
            return cx.error("T120", "views are given as they lie, found a transposed one", arg, "the view without .T")
        if view.dtype.itemsize != 1 or view.dtype != source.dtype:
            return cx.error("T112", f"expected two views of one 8-bit float, found {view}", arg)
        if not view.panelled:
            return cx.error("T138", f"rows are whole panels of 128 bytes, found rows of {view.columns}", arg)
    rows, columns = source.dims
    if target.dims != (columns, rows):
        return cx.error("T125", f"the target is [{columns}, {rows}], the source's transpose, found {list(target.dims)}", "target")
    if rows % 32 or columns % 16:
        return cx.error("T135", f"rows are a multiple of 32 and columns of 16, found [{rows}, {columns}]", "source")
    return Void()
