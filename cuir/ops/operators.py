"""Operators and subscripts: entries like any other, written with Python's signs."""

from __future__ import annotations

from ..syntax.types import BOOL, F32, I32, ErrorType, Scalar, SharedView, TileType, Type
from .base import Access, CallContext, Effects, Param, op
from .meaning import meaning
from .rules import has_error_type, make_type, unify_operands
from .traits import Traits, arithmetic

X, Y = Param("x", "scalar or tile"), Param("y", "scalar or tile")
BOOL_X, BOOL_Y = Param("x", "bool scalar"), Param("y", "bool scalar")


def _type_arithmetic(cx: CallContext) -> Type:
    dtype_shape = unify_operands(cx, "x", "y")
    if dtype_shape is None:
        return ErrorType()
    if dtype_shape[0] == BOOL:
        return cx.error("T112", "expected numbers, found bool", "x")
    return make_type(*dtype_shape)


for _sign, _traits in (
    ("+", arithmetic("x", "y", commutative=True, linear=(1, 1), slip="-")),
    ("-", arithmetic("x", "y", linear=(1, -1), slip="+")),
    ("*", arithmetic("x", "y", commutative=True, multiplies=True, factors=("x", "y"))),
):
    op(
        _sign,
        "operators",
        X,
        Y,
        doc="i32 wraps around; floats round to the dtype. Tiles [R, C], [R, 1] and [1, C] broadcast.",
        operator=True,
        where="any",
        evaluate=meaning(_sign),
        traits=_traits,
    )(_type_arithmetic)


@op(
    "/",
    "operators",
    X,
    Y,
    doc="Quotient of floats, error 2 ulp (5 if four of a tile share a reciprocal); exact if a comparison depends on "
    "it. x / 0 is inf or NaN.",
    operator=True,
    where="any",
    evaluate=meaning("/", ulps=5),
    traits=arithmetic("x", "y", cost=4, special=True, factors=("x",), divisor="y"),
)
def _divide(cx: CallContext) -> Type:
    dtype_shape = unify_operands(cx, "x", "y")
    if dtype_shape is None:
        return ErrorType()
    if not dtype_shape[0].is_float:
        return cx.error("T114", f"`/` divides floats, found {cx.type('x')}", "x", "`//` divides integers")
    return make_type(*dtype_shape)


def _type_integer(cx: CallContext) -> Type:
    dtype_shape = unify_operands(cx, "x", "y")
    if dtype_shape is None:
        return ErrorType()
    return make_type(*dtype_shape) if dtype_shape[0] == I32 else cx.error("T112", f"expected i32, found {cx.type('x')}", "x")


op(
    "//",
    "operators",
    X,
    Y,
    doc="Integer quotient, rounded down, and remainder, with the divisor's sign, as in Python. A divisor of 0 is an error.",
    operator=True,
    where="any",
    evaluate=meaning("//", divides=True),
    traits=arithmetic("x", "y", cost=10, divisor="y", rounds="down"),
)(_type_integer)
op(
    "%",
    "operators",
    X,
    Y,
    doc="Integer quotient, rounded down, and remainder, with the divisor's sign, as in Python. A divisor of 0 is an error.",
    operator=True,
    where="any",
    evaluate=meaning("%", divides=True),
    traits=arithmetic("x", "y", cost=10, divisor="y", remainder=True),
)(_type_integer)


def _type_bits(cx: CallContext) -> Type:
    dtype_shape = unify_operands(cx, "x", "y", ints=True)
    return ErrorType() if dtype_shape is None else make_type(*dtype_shape)


for _sign, _traits in (
    ("&", arithmetic("x", "y", commutative=True, decided_by=False)),
    ("|", arithmetic("x", "y", commutative=True, decided_by=True)),
    ("^", arithmetic("x", "y", commutative=True, involutive=True)),
):
    op(
        _sign,
        "operators",
        X,
        Y,
        doc="Bitwise on i32, logical on bool. These operators bind tighter than comparisons.",
        operator=True,
        where="any",
        evaluate=meaning(_sign),
        traits=_traits,
    )(_type_bits)


@op(
    "~",
    "operators",
    X,
    doc="Complement: bitwise on i32, logical on bool.",
    operator=True,
    where="any",
    evaluate=meaning("~"),
    traits=arithmetic("x", complements=True, involutive=True),
)
def _invert(cx: CallContext) -> Type:
    dtype_shape = unify_operands(cx, "x", ints=True)
    return ErrorType() if dtype_shape is None else make_type(*dtype_shape)


@op(
    "neg",
    "operators",
    X,
    doc="Negation.",
    operator=True,
    where="any",
    spelling="-x",
    evaluate=meaning("neg"),
    traits=arithmetic("x", linear=(-1,), involutive=True),
)
def _negate(cx: CallContext) -> Type:
    dtype_shape = unify_operands(cx, "x")
    if dtype_shape is None:
        return ErrorType()
    return make_type(*dtype_shape) if dtype_shape[0] != BOOL else cx.error("T112", "expected a number, found bool", "x")


def _type_comparison(cx: CallContext) -> Type:
    dtype_shape = unify_operands(cx, "x", "y")
    return ErrorType() if dtype_shape is None else make_type(BOOL, dtype_shape[1])


for _sign, _holds, _slip in (
    ("==", (0,), "!="),
    ("!=", (-1, 1), "=="),
    ("<", (-1,), "<="),
    ("<=", (-1, 0), "<"),
    (">", (1,), ">="),
    (">=", (0, 1), ">"),
):
    op(
        _sign,
        "operators",
        X,
        Y,
        doc="Comparison; it cannot be chained. With a NaN only `!=` is true.",
        operator=True,
        where="any",
        evaluate=meaning(_sign),
        traits=arithmetic("x", "y", commutative=_holds in ((0,), (-1, 1)), compares=_holds, slip=_slip),
    )(_type_comparison)


def _type_logic(cx: CallContext) -> Type:
    for arg in ("x", "y"):
        if cx.has(arg):
            t = cx.type(arg)
            if has_error_type(t):
                return ErrorType()
            if t != Scalar(BOOL):
                return cx.error(
                    "T115",
                    f"`and`, `or` and `not` take bool scalars, found {t}",
                    arg,
                    "on tiles: & | ~" if isinstance(t, TileType) else "compare: x != 0",
                )
    return Scalar(BOOL)


op(
    "and",
    "operators",
    BOOL_X,
    BOOL_Y,
    doc="Logical and, or; the right side is evaluated only if the left does not decide. Scalars only.",
    operator=True,
    where="any",
    evaluate=meaning("and"),
    traits=arithmetic("x", "y", lazy=("y",), decided_by=False),
)(_type_logic)
op(
    "or",
    "operators",
    BOOL_X,
    BOOL_Y,
    doc="Logical and, or; the right side is evaluated only if the left does not decide. Scalars only.",
    operator=True,
    where="any",
    evaluate=meaning("or"),
    traits=arithmetic("x", "y", lazy=("y",), decided_by=True),
)(_type_logic)
op(
    "not",
    "operators",
    BOOL_X,
    doc="Negation of a bool scalar.",
    operator=True,
    where="any",
    evaluate=meaning("not"),
    traits=arithmetic("x", complements=True, involutive=True),
)(_type_logic)


@op(
    "ifexp",
    "operators",
    Param("cond", "bool scalar"),
    Param("x", "scalar"),
    Param("y", "scalar"),
    operator=True,
    where="any",
    spelling="x if cond else y",
    doc="x if cond, else y; only the chosen one is evaluated. Scalars only: on tiles use where.",
    evaluate=meaning("ifexp"),
    traits=arithmetic("x", "y", lazy=("x", "y"), chooses="cond"),
)
def _ifexp(cx: CallContext) -> Type:
    if has_error_type(cx.type("cond")):
        return ErrorType()
    if cx.type("cond") != Scalar(BOOL):
        return cx.error("T116", f"a condition is a bool scalar, found {cx.type('cond')}", "cond", "on tiles: where(cond, x, y)")
    dtype_shape = unify_operands(cx, "x", "y")
    if dtype_shape is None:
        return ErrorType()
    return (
        make_type(*dtype_shape)
        if dtype_shape[1] is None
        else cx.error("T117", "`x if cond else y` chooses between scalars, found tiles", "x", "write an if statement, or where(cond, x, y)")
    )


_READ = Effects(accesses=(Access("place", "read", "generic"),))


@op(
    "element",
    "operators",
    Param("place", "tensor or shared array with an index per dim"),
    operator=True,
    effects=_READ,
    where="any",
    spelling="x[i, j]",
    traits=Traits(cost=10, one_lane=True, indexed=True),
    doc="With scalar indices: one element, a scalar (i32, f32 or bool). An index outside of the array is an error.",
)
def _element(cx: CallContext) -> Type:
    dtype = cx.type("place").dtype  # type: ignore[union-attr]
    if dtype not in (I32, F32, BOOL):
        return cx.error(
            "T118",
            f"an element of {dtype} is no scalar (scalars are i32, f32 and bool)",
            "place",
            "gather a tile with an index tile: x[rows(16), 0]",
        )
    return Scalar(dtype)


@op(
    "gather",
    "operators",
    Param("place", "tensor with an index per dim, at least one a tile"),
    operator=True,
    effects=_READ,
    spelling="x[i, rows(64)]",
    traits=Traits(cost=10, indexed=True),
    doc="With an i32 tile as an index: a gather; its shape is the broadcast of the index tiles. Elements outside of "
    "the tensor read 0; store drops them.",
)
def _gather(cx: CallContext) -> Type:
    return cx.type("place")


@op(
    "view",
    "operators",
    Param("place", "tensor or shared array"),
    operator=True,
    spelling="x[s, e : e + c, :]",
    where="any",
    traits=Traits(place=True),
    doc="With a slice: a view, which reads nothing. Slices are `:` or `e : e + c` with the same text e and a known c; "
    "integers drop dims, trailing dims may be left out. A tensor's box may reach beyond it (reads 0, writes "
    "nothing). Slices of shared arrays begin at a multiple of 8 rows or at a 128-byte panel of columns, and hold "
    "whole 16-byte chunks.",
)
def _view(cx: CallContext) -> Type:
    return cx.type("place")


@op(
    "T",
    "operators",
    Param("x", "Shared view of two dims"),
    operator=True,
    spelling="x.T",
    traits=Traits(place=True),
    doc="The transpose of a shared view, for products and load: nothing moves. For a register tile: store it to a shared view s, then load(s.T).",
)
def _transpose(cx: CallContext) -> Type:
    t = cx.type("x")
    if has_error_type(t):
        return ErrorType()
    if not isinstance(t, SharedView) or len(t.dims) != 2:
        hint = "register tiles have no .T: store to shared memory and load(view.T)" if isinstance(t, TileType) else None
        return cx.error("T119", f".T is of a Shared view of two dims, found {t}", "x", hint)
    return SharedView(t.dtype, (t.dims[1], t.dims[0]), t.columns, not t.transposed)
