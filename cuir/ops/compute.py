"""Arithmetic on register tiles and products on the tensor core."""

from __future__ import annotations

from ..syntax.types import BF16, BOOL, F8E4M3, F8E5M2, F16, F32, I32, DType, ErrorType, GlobalView, Scalar, SharedView, TileType, Type, Void
from .base import Access, CallContext, Effects, Param, op
from .meaning import meaning
from .rules import has_error_type, make_type, refuse_rank, require_i32, require_known, unify_operands
from .traits import Traits, arithmetic

PARTS = (1, 2)  # numbers of TF32 that an operand of f32 may be taken in
HALVES, BYTES = (F16, BF16), (F8E4M3, F8E5M2)
LOG2E = 1.4426950408889634  # log2(e)


def _check_product(cx: CallContext, unit: str, b_shared: bool) -> Type:
    """Check the operands of a product and return its type.

    unit: what multiplies, a feature of the target, which determines the dtypes of operands. An instruction takes 32
    bytes of the inner dim.
    """
    dtypes = cx.target.operands.get(unit, ())
    widened = cx.target.operands.get("widened", ()) if unit == "mma_sync" else ()
    a, b = cx.type("a"), cx.type("b")
    if has_error_type(a, b):
        return ErrorType()
    for arg, t in (("a", a), ("b", b)):
        if not isinstance(t, (TileType, SharedView)) or (arg == "b" and b_shared and isinstance(t, TileType)):
            expectation = "lies in shared memory" if arg == "b" and b_shared else "is a Shared view or a tile"
            return cx.error("T131", f"operand `{arg}` {expectation}, found {t}", arg)
        if isinstance(t, SharedView) and len(t.dims) != 2:
            return refuse_rank(cx, arg, t)
        if arg == "b" and t.dtype.name in widened and isinstance(a, (TileType, SharedView)) and a.dtype in HALVES:
            if isinstance(t, TileType):
                return cx.error("T131", f"operand `b` of {t.dtype} beside {a.dtype} lies in shared memory, found {t}", arg)
            continue
        if t.dtype.name not in dtypes:
            return cx.error("T132", f"operands are {' or '.join(dtypes)}, found {t}", arg, f"cast(x, {dtypes[0]})")
        in_registers = isinstance(t, TileType) and arg == "a" and unit == "wgmma"
        if t.dtype.itemsize == 1 and not in_registers and (isinstance(t, TileType) or t.transposed != (arg == "b")):
            expectation = "row by row" if arg == "a" else "column by column: .T of a view"
            return cx.error("T131", f"operand `{arg}` of {t.dtype} lies in shared memory {expectation}, found {t}", arg)
    assert isinstance(a, (TileType, SharedView)) and isinstance(b, (TileType, SharedView))
    if a.dtype != b.dtype and b.dtype.name not in widened:
        beside = b.dtype.itemsize == 1 and a.dtype in HALVES and "widened" in cx.target.operands
        hint = "mma takes 8-bit floats beside halves: b as a view" if beside else None
        return cx.error("T133", f"operands have one dtype, found {a.dtype} and {b.dtype}", "b", hint)
    (r, k), (kb, c) = _get_shape(a), _get_shape(b)
    if k != kb:
        return cx.error("T134", f"inner dims must agree: a is [{r}, {k}], b is [{kb}, {c}]", "b", ".T transposes a shared view")
    if k % (32 // a.dtype.itemsize):
        return cx.error("T135", f"the inner dim is a multiple of {32 // a.dtype.itemsize}, found {k}", "a")
    result = TileType(F32, r, c)
    if cx.has("c") and cx.type("c") != result:
        return (
            ErrorType()
            if has_error_type(cx.type("c"))
            else cx.error("T136", f"the accumulator must be {result}, found {cx.type('c')}", "c")
        )
    return result


def _get_shape(t: TileType | SharedView) -> tuple[int, int]:
    return (t.rows, t.cols) if isinstance(t, TileType) else (t.dims[0], t.dims[1])


def _check_parts(cx: CallContext) -> Type:
    """Check `parts`, which operands of f32 require and no others take.

    It is the number of values of the tensor core's format that an operand is taken in.
    """
    a = cx.type("a")
    single = isinstance(a, (TileType, SharedView)) and a.dtype == F32
    if not cx.has("parts"):
        return (
            cx.error(
                "T147",
                "operands of f32 are taken in `parts`, which is not given",
                "a",
                "parts=2 for the accuracy of f32, parts=1 for that of TF32",
            )
            if single
            else Void()
        )
    parts = require_known(cx, "parts", int)
    if parts is None:
        return ErrorType()
    if parts not in PARTS or not single:
        expectation = f"`parts` is {' or '.join(map(str, PARTS))}, found {parts}" if single else "`parts` are of f32 operands"
        return cx.error("T147", expectation, "parts")
    return Void()


_A = Param("a", "Shared view or tile [R, K]")
_C = Param("c", "f32 tile [R, C]", "zeros")


@op(
    "mma",
    "compute",
    _A,
    Param("b", "Shared view or tile [K, C]"),
    _C,
    Param("parts", "const i32, required for f32 operands, else forbidden", "none", keyword=True),
    sums=True,
    reduces=True,
    effects=Effects(accesses=(Access("a", "read", "generic"), Access("b", "read", "generic"))),
    traits=Traits(product=True),
    doc="a @ b + c by the worker, finished on return (mma.sync). R is a multiple of 16 for a warp, of 64 for a "
    "warpgroup; K of 16 (f32: 8, 8-bit floats: 32); C of 8. Products are exact, accumulation is f32. If `a` is f16 or bf16, `b` may "
    "be 8-bit floats. f32 operands require `parts`. parts=1: each operand is one TF32 number (11 bits), rounded "
    "within 0.7 units in the last place. parts=2: the nearest TF32 number, and the rest cut off to TF32; the "
    "product of both rests is left out. That is as accurate as f32; an infinite operand gives NaN.",
)
def _mma(cx: CallContext) -> Type:
    t = _check_product(cx, "mma_sync", b_shared=False)
    if isinstance(t, TileType) and isinstance(_check_parts(cx), ErrorType):
        return ErrorType()
    if isinstance(t, TileType) and (t.rows % (cx.threads // 2) or t.cols % 8):  # type: ignore[attr-defined]
        return cx.error("T137", f"a product is [R, C] with R a multiple of {cx.threads // 2} and C of 8, found [{t.rows}, {t.cols}]", "a")  # type: ignore[attr-defined]
    return t


@op(
    "mma_async",
    "compute",
    _A,
    Param("b", "Shared view [K, C]"),
    _C,
    needs=("wgmma",),
    workers=(128,),
    sums=True,
    reduces=True,
    effects=Effects(accesses=(Access("a", "read", "async", late=True), Access("b", "read", "async", late=True)), group="wgmma"),
    traits=Traits(product=True),
    doc="a @ b + c by the tensor core (wgmma, its own commit group), in flight until mma_wait. The product takes over "
    "the accumulator: the old value may only be waited for; a next product on the result needs no wait. R is a "
    "multiple of 64, K of 16, C of 8 and at most 256. Products are exact, accumulation is f32.",
)
def _mma_async(cx: CallContext) -> Type:
    t = _check_product(cx, "wgmma", b_shared=True)
    if isinstance(t, TileType):
        if t.rows % 64 or t.cols % 8:
            return cx.error("T137", f"a product is [R, C] with R a multiple of 64 and C of 8, found [{t.rows}, {t.cols}]", "a")
        if t.cols > 256:
            return cx.error("T137", f"a product has at most 256 columns, found {t.cols}", "b", "split b by columns")
    for arg in ("a", "b"):
        view = cx.type(arg)
        if isinstance(view, SharedView) and not view.panelled:
            return cx.error(
                "T138",
                f"an operand lies in an array whose rows are whole panels of 128 bytes ({128 // view.dtype.itemsize} {view.dtype}), "
                f"found {view} in rows of {view.columns}",
                arg,
                "a slice of the columns of a wider array",
            )
    return t


@op(
    "mma_wait",
    "compute",
    Param("x", "products or other tiles", variadic=True),
    needs=("wgmma",),
    workers=(128,),
    effects=Effects(drains="wgmma"),
    doc="Waits for product x and every product that the worker issued before x; a value that is no product needs no "
    "wait. wgmma.wait_group N leaves N products in flight: the fewest issued after x, over all paths, at most 7.",
)
def _mma_wait(cx: CallContext) -> Type:
    for arg in cx.variadic("x"):
        if not isinstance(cx.type(arg), (TileType, ErrorType)):
            return cx.error("T139", f"mma_wait takes tiles, found {cx.type(arg)}", arg)
    return Void()


def _type_extremum(cx: CallContext) -> Type:
    args = cx.variadic("x")
    if len(args) < 2:
        return cx.error(
            "T140", "expected two or more arguments, elementwise", args[0] if args else None, "the maximum of a row is row_max(x)"
        )
    dtype_shape = unify_operands(cx, *args)
    if dtype_shape is None:
        return ErrorType()
    return make_type(*dtype_shape) if dtype_shape[0] != BOOL else cx.error("T112", "expected numbers, found bool", args[0])


_XS = Param("x", "scalars or tiles", variadic=True)
op(
    "min",
    "compute",
    _XS,
    where="any",
    doc="Elementwise minimum or maximum of two or more arguments; a NaN in any of them gives NaN.",
    evaluate=meaning("min"),
    traits=arithmetic("x", commutative=True, extremum="min", slip="max"),
)(_type_extremum)
op(
    "max",
    "compute",
    _XS,
    where="any",
    doc="Elementwise minimum or maximum of two or more arguments; a NaN in any of them gives NaN.",
    evaluate=meaning("max"),
    traits=arithmetic("x", commutative=True, extremum="max", slip="min"),
)(_type_extremum)


@op(
    "where",
    "compute",
    Param("cond", "bool tile"),
    Param("x", "tile or scalar"),
    Param("y", "tile or scalar"),
    doc="x where cond is true, else y; elementwise with broadcasting; both are evaluated.",
    evaluate=meaning("where"),
    traits=Traits(elementwise=True, alike=("x", "y"), chooses="cond"),
)
def _where(cx: CallContext) -> Type:
    cond, dtype_shape = cx.type("cond"), unify_operands(cx, "x", "y")
    if has_error_type(cond) or dtype_shape is None:
        return ErrorType()
    if not isinstance(cond, TileType) or cond.dtype != BOOL:
        hint = "on scalars: x if cond else y" if cond == Scalar(BOOL) else None
        return cx.error("T141", f"`cond` is a bool tile, found {cond}", "cond", hint)
    shape = cx.broadcast("cond", dtype_shape[1])  # type: ignore[attr-defined]
    return ErrorType() if shape is None else TileType(dtype_shape[0], *shape)


def _type_unary_float(cx: CallContext) -> Type:
    dtype_shape = unify_operands(cx, "x")
    if dtype_shape is None:
        return ErrorType()
    return (
        make_type(*dtype_shape) if dtype_shape[0] == F32 else cx.error("T142", f"expected f32, found {cx.type('x')}", "x", "cast(x, f32)")
    )


_X = Param("x", "f32 scalar or tile")
op(
    "exp2",
    "compute",
    _X,
    where="any",
    smallest=2.0**-126,
    doc="2 to the power x, by the hardware; exp(x) is exp2(x * 1.4426950408889634). An eighth as fast as a "
    "multiplication; error 2 ulp. Results below 2^-126 are 0.",
    evaluate=meaning("exp2", ulps=2, rounded=False),
    traits=arithmetic("x", cost=4, special=True, exponential=2, slip="log2"),
)(_type_unary_float)
op(
    "log2",
    "compute",
    _X,
    where="any",
    doc="Logarithm to base 2, error 2 ulp; log2(0) is -inf.",
    evaluate=meaning("log2", ulps=2, rounded=False),
    traits=arithmetic("x", cost=4, special=True, logarithm=2),
)(_type_unary_float)
op(
    "tanh",
    "compute",
    _X,
    where="any",
    doc="Hyperbolic tangent, error 4 ulp. A tile takes seven multiply-adds an element if all elements are below 0.6, "
    "else twice that, an exp2 and a quarter of a division.",
    evaluate=meaning("tanh", ulps=4, rounded=False),
    traits=arithmetic("x", cost=4, special=True, logistic=2 * LOG2E),
)(_type_unary_float)


# Functions of C's library, by their names there: within the bounds that CUDA's documentation gives, over the whole range,
# subnormals kept.
for _name, _ulps, _cost in (
    ("sqrt", 0, 10),
    ("floor", 0, 1),
    ("round", 0, 1),
    ("sin", 2, 24),
    ("cos", 2, 24),
    ("atan", 2, 20),
    ("log1p", 2, 24),
    ("erf", 2, 24),
    ("erfc", 4, 30),
):
    op(
        _name,
        "compute",
        _X,
        where="any",
        doc=f"PyTorch's function of this name in f32, {f'error {_ulps} ulp over the whole range' if _ulps else 'correctly rounded'}.",
        evaluate=meaning(_name, ulps=_ulps, rounded=not _ulps),
        traits=arithmetic(
            "x",
            cost=_cost,
            root={"sqrt": 2}.get(_name),
            quarters={"sin": 0, "cos": 1}.get(_name),
            jumps=_name in ("floor", "round"),
        ),
    )(_type_unary_float)


op(
    "round_tf32",
    "compute",
    _X,
    where="any",
    doc="Rounds x to TF32, as products with parts=1 do.",
    evaluate=meaning("round_tf32"),
    traits=arithmetic("x", cost=2),
)(_type_unary_float)


def _type_binary_float(cx: CallContext) -> Type:
    dtype_shape = unify_operands(cx, "x", "y")
    if dtype_shape is None:
        return ErrorType()
    return (
        make_type(*dtype_shape) if dtype_shape[0] == F32 else cx.error("T142", f"expected f32, found {cx.type('x')}", "x", "cast(x, f32)")
    )


_Y = Param("y", "f32 scalar or tile")
op(
    "power",
    "compute",
    _X,
    _Y,
    where="any",
    doc="PyTorch's pow(x, y) in f32, error 4 ulp; exp2(y * log2(x)) is faster, but less accurate if y * log2(x) is far from 0.",
    evaluate=meaning("power", ulps=4, rounded=False),
    traits=arithmetic("x", "y", cost=50),
)(_type_binary_float)
op(
    "fmod",
    "compute",
    _X,
    _Y,
    where="any",
    doc="PyTorch's fmod(x, y) in f32: exact, with x's sign.",
    evaluate=meaning("fmod"),
    traits=arithmetic("x", "y", cost=30, jumps=True),
)(_type_binary_float)


@op(
    "bit",
    "compute",
    Param("x", "i32 scalar or tile"),
    Param("y", "i32 scalar or tile"),
    where="any",
    doc="Whether bit y % 32 of x is set; bit 0 is the lowest. If 32 columns share a word, bit(word, c) costs an instruction an element.",
    evaluate=meaning("bit"),
    traits=arithmetic("x", "y", cost=2, tests_bit=True),
)
def _bit(cx: CallContext) -> Type:
    dtype_shape = unify_operands(cx, "x", "y")
    if dtype_shape is None:
        return ErrorType()
    return make_type(BOOL, dtype_shape[1]) if dtype_shape[0] == I32 else cx.error("T112", f"expected i32, found {cx.type('x')}", "x")


@op(
    "abs",
    "compute",
    Param("x", "scalar or tile"),
    where="any",
    doc="Absolute value.",
    evaluate=meaning("abs"),
    traits=arithmetic("x", magnitude=True),
)
def _abs(cx: CallContext) -> Type:
    dtype_shape = unify_operands(cx, "x")
    if dtype_shape is None:
        return ErrorType()
    return make_type(*dtype_shape) if dtype_shape[0] != BOOL else cx.error("T112", "expected a number, found bool", "x")


@op(
    "cast",
    "compute",
    Param("x", "scalar or tile"),
    Param("dtype", "dtype"),
    where="any",
    doc="Converts: floats round to nearest even, f32 to i32 truncates and saturates (NaN: 0), bool gives 0 or 1, a number to bool is x != 0.",
    evaluate=meaning("cast"),
    traits=arithmetic(converts="dtype"),
)
def _cast(cx: CallContext) -> Type:
    dtype_shape, dtype = unify_operands(cx, "x"), require_known(cx, "dtype", DType)
    if dtype_shape is None or dtype is None:
        return ErrorType()
    if dtype_shape[1] is None and dtype not in (I32, F32, BOOL):
        return cx.error("T143", f"scalars are i32, f32 or bool, found {dtype}", "dtype")
    return make_type(dtype, dtype_shape[1])


def _require_reducible(cx: CallContext) -> TileType | None:
    """Return the tile to reduce; None after an error."""
    t = cx.type("x")
    if has_error_type(t):
        return None
    if not isinstance(t, TileType):
        hint = "load(view) reads a view into registers" if isinstance(t, (GlobalView, SharedView)) else None
        cx.error("T144", f"expected a tile, found {t}", "x", hint)
        return None
    if t.dtype != F32:
        cx.error("T142", f"expected f32, found {t}", "x", "cast(x, f32)")
        return None
    return t


def _type_reduction(cx: CallContext) -> Type:
    t = _require_reducible(cx)
    return ErrorType() if t is None else TileType(t.dtype, t.rows, 1)


def _type_column_reduction(cx: CallContext) -> Type:
    t = _require_reducible(cx)
    return ErrorType() if t is None else TileType(t.dtype, 1, t.cols)


_TILE = Param("x", "f32 tile [R, C]")
op(
    "row_max",
    "compute",
    _TILE,
    reduces=True,
    doc="The maximum of each row, [R, 1]; a NaN in a row gives NaN.",
    evaluate=meaning("row_max"),
    traits=Traits(reduction="max", slip="row_sum"),
)(_type_reduction)
op(
    "row_sum",
    "compute",
    _TILE,
    sums=True,
    reduces=True,
    doc="The sum of each row, [R, 1], in no fixed order.",
    evaluate=meaning("row_sum", rounded=False),
    traits=Traits(reduction="sum", slip="row_max"),
)(_type_reduction)
op(
    "col_max",
    "compute",
    _TILE,
    reduces=True,
    doc="The maximum of each column, [1, C]; a NaN in a column gives NaN. The warps exchange 16 bytes a column through shared memory.",
    evaluate=meaning("col_max"),
    traits=Traits(column_reduction="max", slip="col_sum"),
)(_type_column_reduction)
op(
    "col_sum",
    "compute",
    _TILE,
    sums=True,
    reduces=True,
    doc="The sum of each column, [1, C], in no fixed order. Warps exchange as for col_max.",
    evaluate=meaning("col_sum", rounded=False),
    traits=Traits(column_reduction="sum", slip="col_max"),
)(_type_column_reduction)


@op(
    "warp_any",
    "compute",
    Param("x", "bool tile [R, C] or scalar"),
    reduces=True,
    doc="[R, 1]: true in the 16 rows of a warp if x is true anywhere in them. where(warp_any(c), x, y) is a branch of "
    "each warp, which computes one side.",
    evaluate=meaning("warp_any"),
    traits=Traits(votes=True),
)
def _vote(cx: CallContext) -> Type:
    t = cx.type("x")
    if has_error_type(t):
        return ErrorType()
    if not isinstance(t, (TileType, Scalar)) or t.dtype != BOOL:
        return cx.error("T112", f"expected a bool tile or scalar, found {t}", "x", "compare: x > 0.0")
    return TileType(BOOL, t.rows if isinstance(t, TileType) else 1, 1)


@op(
    "cdiv",
    "compute",
    Param("a", "i32"),
    Param("b", "i32"),
    where="any",
    doc="a / b rounded up: -(-a // b).",
    evaluate=meaning("cdiv", divides=True),
    traits=arithmetic(cost=10, divisor="b", rounds="up", slip="//"),
)
def _cdiv(cx: CallContext) -> Type:
    ok = [require_i32(cx, "a"), require_i32(cx, "b")]
    return Scalar(I32) if all(ok) else ErrorType()


_BYTES = "f8e4m3 or f8e5m2"


@op(
    "interleave",
    "compute",
    Param("x", "8-bit float tile [R, C]"),
    needs=("wgmma",),
    reduces=True,
    doc="The columns of each 16 in the order 0 1 8 9 2 3 10 11 4 5 12 13 6 7 14 15, C a multiple of 32: a left operand of "
    "mma_async, by rows in this order (transpose_interleaved).",
    evaluate=meaning("interleave"),
    traits=Traits(interleaves=True),
)
def _interleave(cx: CallContext) -> Type:
    t = cx.type("x")
    if has_error_type(t):
        return ErrorType()
    if not isinstance(t, TileType) or t.dtype not in BYTES:
        return cx.error("T112", f"expected a tile of {_BYTES}, found {t}", "x", "cast(x, f8e4m3)")
    return t if t.cols % 32 == 0 else cx.error("T135", f"columns are a multiple of 32, found {t.cols}", "x")
