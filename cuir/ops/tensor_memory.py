"""Tensor memory: accumulators of products that one thread issues, and their loads into registers (tcgen05)."""

from __future__ import annotations

from ..syntax.types import BOOL, F32, TENSOR_COLUMNS, TENSOR_LANES, BarrierType, DType, ErrorType, Scalar, SharedView, TileType, Type, Void
from .base import PRODUCTS, Access, CallContext, Effects, Group, Param, op
from .rules import has_error_type, require_dims, require_known, require_shared
from .traits import Traits

QUEUE: Group = "tensor_core"  # products into tensor memory, which finish in the order of their issue
UNIT = 32  # columns: of allocations, and of slices
STEP = 32  # bytes of the inner dim that an instruction takes
MOST_COLUMNS = 256  # of a product


@op(
    "tensor_memory",
    "memory",
    Param("dtype", "dtype"),
    Param("dims", "[dims]"),
    needs=("tcgen05",),
    where="declaration",
    traits=Traits(declares=True, makes="array"),
    doc="An f32 array [128, C], or [S, 128, C], in 512 columns of tensor memory, undefined until written. C is a multiple of 32.",
)
def _tensor_memory(cx: CallContext) -> Type:
    dtype, dims = require_known(cx, "dtype", DType), require_dims(cx, "dims")
    if dtype is None or dims is None:
        return ErrorType()
    if dtype != F32:
        return cx.error("T103", f"tensor memory holds f32, found {dtype}", "dtype")
    if len(dims) not in (2, 3) or dims[-2] != TENSOR_LANES or dims[-1] % UNIT or dims[-1] > TENSOR_COLUMNS:
        found = ", ".join(map(str, dims))
        return cx.error(
            "T104", f"an array has [{TENSOR_LANES}, C] or [S, {TENSOR_LANES}, C], C in multiples of {UNIT}, found [{found}]", "dims"
        )
    return SharedView(dtype, dims, dims[-1], in_tensor_memory=True)


def _require_accumulator(cx: CallContext, arg: str) -> SharedView | None:
    t = cx.type(arg)
    if has_error_type(t):
        return None
    if not isinstance(t, SharedView) or not t.in_tensor_memory:
        cx.error("T106", f"`{arg}` must lie in tensor memory, found {t}", arg)
        return None
    if len(t.dims) != 2 or t.dims[0] != TENSOR_LANES or t.dims[1] % UNIT:
        hint = "pick a stage, and slice columns only: acc[s, :, c : c + 32]"
        cx.error("T107", f"`{arg}` must have all {TENSOR_LANES} lanes, and columns in multiples of {UNIT}, found {t}", arg, hint)
        return None
    return t


@op(
    "mma_into",
    "compute",
    Param("acc", "tensor memory view [R, C]"),
    Param("a", "Shared view [R, K]"),
    Param("b", "Shared view [K, C]"),
    Param("accumulate", "bool", "True", keyword=True),
    needs=("tcgen05",),
    workers=(32,),
    sums=True,
    reduces=True,
    effects=Effects(
        accesses=(
            Access("a", "read", "async", late=True),
            Access("b", "read", "async", late=True),
            Access("acc", "write", QUEUE, late=True),
        ),
        group=QUEUE,
    ),
    traits=Traits(product=True, one_lane=True, joins_worker=True),
    doc="acc = a @ b, or acc + a @ b, in f32 (tcgen05.mma), in flight until a later mma_commit arrives. A worker's "
    "products finish in order. R is 128, K a multiple of 16, C of 32, at most 256; b is x.T.",
)
def _mma_into(cx: CallContext) -> Type:
    acc, a, b = _require_accumulator(cx, "acc"), require_shared(cx, "a"), require_shared(cx, "b")
    if cx.has("accumulate") and cx.type("accumulate") != Scalar(BOOL) and not has_error_type(cx.type("accumulate")):
        return cx.error("T116", f"`accumulate` is a bool scalar, found {cx.type('accumulate')}", "accumulate")
    if acc is None or a is None or b is None:
        return ErrorType()
    dtypes = cx.target.operands.get("tcgen05", ())
    for arg, view in (("a", a), ("b", b)):
        if view.in_tensor_memory:
            return cx.error("T106", f"`{arg}` must lie in shared memory, found {view}", arg)
        if view.dtype.name not in dtypes:
            return cx.error("T132", f"operands are {' or '.join(dtypes)}, found {view}", arg)
        if not view.panelled or view.transposed != (arg == "b"):
            expectation = "row by row" if arg == "a" else "column by column: .T of a view"
            return cx.error("T131", f"operand `{arg}` lies in whole panels of 128 bytes, {expectation}, found {view}", arg)
    if a.dtype != b.dtype:
        return cx.error("T133", f"operands have one dtype, found {a.dtype} and {b.dtype}", "b")
    (rows, inner), (inner_b, columns) = a.dims, b.dims
    if inner != inner_b:
        return cx.error(
            "T134", f"inner dims must agree: a is [{rows}, {inner}], b is [{inner_b}, {columns}]", "b", ".T transposes a shared view"
        )
    if inner * a.dtype.itemsize % STEP:
        return cx.error("T135", f"the inner dim is a multiple of {STEP // a.dtype.itemsize}, found {inner}", "a")
    if (rows, columns) != acc.dims or columns > MOST_COLUMNS:
        return cx.error("T136", f"the accumulator must have [{rows}, {columns}], with at most {MOST_COLUMNS} columns, found {acc}", "acc")
    return Void()


@op(
    "mma_commit",
    "sync",
    Param("bar", "mbarrier"),
    needs=("tcgen05",),
    workers=(32,),
    effects=Effects(arrives="bar", completes="bar", commits=QUEUE),
    traits=Traits(one_lane=True, joins_worker=True),
    doc="Arrives when all earlier mma_into of the worker are over (tcgen05.commit). It orders these and what the worker "
    "learned from others.",
)
def _mma_commit(cx: CallContext) -> Type:
    bar = cx.type("bar")
    if not isinstance(bar, (BarrierType, ErrorType)) or (isinstance(bar, BarrierType) and (bar.kind, bar.stages) != ("mbarrier", None)):
        cx.error("T129", f"a commit arrives at one mbarrier, found {bar}", "bar", "pick a stage: bar[s]")
    return Void()


@op(
    "load_async",
    "memory",
    Param("view", "tensor memory view"),
    needs=("tcgen05",),
    workers=(128,),
    effects=Effects(accesses=(Access("view", "read", "generic", late=True),), group=PRODUCTS),
    traits=Traits(cost=10),
    doc="Reads columns into registers (tcgen05.ld), in flight until load_wait.",
)
def _load_async(cx: CallContext) -> Type:
    view = _require_accumulator(cx, "view")
    return ErrorType() if view is None else TileType(view.dtype, *view.dims)


@op(
    "load_wait",
    "memory",
    Param("x", "loads or other tiles", variadic=True),
    needs=("tcgen05",),
    workers=(128,),
    effects=Effects(drains=PRODUCTS),
    doc="Waits for load x and earlier ones (tcgen05.wait::ld).",
)
def _load_wait(cx: CallContext) -> Type:
    for arg in cx.variadic("x"):
        if not isinstance(cx.type(arg), (TileType, ErrorType)):
            return cx.error("T139", f"load_wait takes tiles, found {cx.type(arg)}", arg)
    return Void()
