"""The table of operations of PyTorch and Python that a mod may use, and the CuIR that they give."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

import torch

from ...ops import OPERATORS
from ...ops import build_calls as build
from ...syntax.nodes import Binary, Call, Expr, IfExp, Literal, Name, Unary
from ...syntax.printer import show
from ...syntax.types import BF16, BOOL, F16, F32, I32, DType
from .concrete_answers import TRACE
from .half_rounding import HALVES, in_f32, in_half
from .operation_table import handles
from .partial_derivatives import attach_partials
from .proxy import (
    PRODUCTS,
    Handler,
    Proxy,
    Scalar,
    TensorProxy,
    as_constants,
    exactly,
    lift,
    literal,
    make_proxy,
    promote,
    to,
    without_gradient,
)
from .refusal import refuse


@handles("add")
def _add(x: object, y: object, *, alpha: Scalar = 1) -> Proxy:
    a, b = promote(x, y if alpha == 1 else _mul(y, alpha))
    return _apply_logical("|", a, b) if a.element == BOOL else make_proxy(Binary("+", a.expr, b.expr), a.element, a, b, value=operator.add)


@handles("sub", "subtract")
def _sub(x: object, y: object, *, alpha: Scalar = 1) -> Proxy:
    a, b = promote(x, y if alpha == 1 else _mul(y, alpha))
    if a.element == BOOL:
        refuse("a difference of two bools", "use ^ or & ~")
    return make_proxy(Binary("-", a.expr, b.expr), a.element, a, b, value=operator.sub)


@handles("mul", "multiply")
def _mul(x: object, y: object) -> Proxy:
    a, b = promote(x, y)
    if a.element == BOOL:
        return _apply_logical("&", a, b)
    return make_proxy(Binary("*", a.expr, b.expr), a.element, a, b, value=operator.mul)


@handles("truediv", "div", "divide", "true_divide")
def _div(x: object, y: object, *, rounding_mode: str | None = None) -> Proxy:
    if rounding_mode == "floor":
        return _floordiv(x, y)
    if rounding_mode == "trunc":
        return _quotient_to_zero(x, y)
    if rounding_mode is not None:
        refuse(f"div with rounding_mode={rounding_mode!r} cannot become part of a kernel", 'None, "floor" or "trunc"')
    a, b = to(lift(x), F32), to(lift(y), F32)
    return make_proxy(Binary("/", a.expr, b.expr), F32, a, b, value=operator.truediv)


@handles("floordiv", "floor_divide")
def _floordiv(x: object, y: object) -> Proxy:
    a, b = promote(x, y)
    if a.element != F32:
        return _whole("//", a, b, operator.floordiv)
    rest = _fmod(a, b)  # as PyTorch computes it: the quotient without the remainder is a whole number up to rounding
    near = _sub(_div(_sub(a, rest), b), to(_has_opposite_sign(rest, b), F32))
    below = _floor(near)
    whole = _where(_comparison(">", operator.gt)(_sub(near, below), 0.5), _add(below, 1.0), below)
    return whole if literal(b) and b.value else _where(_comparison("==", operator.eq)(b, 0.0), without_gradient(_div(a, b)), whole)


@handles("mod", "remainder")
def _mod(x: object, y: object) -> Proxy:
    a, b = promote(x, y)
    if a.element != F32:
        return _whole("%", a, b, operator.mod)
    rest = _fmod(a, b)
    return _where(_has_opposite_sign(rest, b), _add(rest, b), rest)


def _has_opposite_sign(rest: Proxy, divisor: Proxy) -> Proxy:
    """Return whether the remainder of a division toward 0 lacks the divisor's sign."""
    less, unequal = _comparison("<", operator.lt), _comparison("!=", operator.ne)
    return _apply_logical("&", unequal(rest, 0), unequal(less(rest, 0), less(divisor, 0)))


@handles("fmod")
def _fmod(x: object, y: object) -> Proxy:
    a, b = promote(x, y)
    if a.element == F32:
        return make_proxy(build.fmod(a.expr, b.expr), F32, a, b, value=math.fmod)
    rest = _whole("%", a, b, operator.mod)
    return _where(_rounds_down(a, b, rest), _sub(rest, b), rest)


def _rounds_down(a: Proxy, b: Proxy, rest: Proxy) -> Proxy:
    """Return whether a quotient of integers is less when rounded to minus infinity than to 0."""
    less, unequal = _comparison("<", operator.lt), _comparison("!=", operator.ne)
    return _apply_logical("&", unequal(rest, 0), unequal(less(a, 0), less(b, 0)))


def _quotient_to_zero(x: object, y: object) -> Proxy:
    a, b = promote(x, y)
    if a.element == F32:
        return _trunc(_div(a, b))
    quotient, rest = _whole("//", a, b, operator.floordiv), _whole("%", a, b, operator.mod)
    return _add(quotient, to(_rounds_down(a, b, rest), I32))


def _whole(sign: str, x: object, y: object, value: Callable[..., int | float]) -> Proxy:
    a, b = promote(x, y)
    if a.element != I32:
        refuse(f"`{sign}` is of numbers, found {a.element}", ".to(torch.int32) converts")
    if b.value == 0:
        refuse(f"`{sign}` by {show(b.expr)}, which is 0", "a divisor is at least 1")
    if b.varies and (running := TRACE.get()) is not None and running.beyond:
        b = _where(_comparison("==", operator.eq)(b, 0), 1, b)  # which it may be for a pair that is none
    if value is operator.floordiv and b.value is not None and b.value < 0 and not literal(b):
        a, b = _sub(0, a), _sub(0, b)  # the same quotient; blocks and bounds assume that captured divisors are positive
    return make_proxy(Binary(sign, a.expr, b.expr), I32, a, b, value=value)


@handles("pow")
def _pow(x: object, y: object) -> Proxy:
    a, b = (to(p, I32) if p.element == BOOL else p for p in (lift(x), lift(y)))
    if a.value is not None and a.value <= 0:
        as_constants(a, b)  # no logarithm
    if literal(b) and b.value in PRODUCTS:
        product = a
        for _ in range(int(b.value) - 1):
            product = _mul(product, a)
        return product
    if a.value is not None and b.value is not None:
        return make_proxy(
            build.exp2(Binary("*", to(b, F32).expr, build.log2(to(a, F32).expr))),
            F32,
            to(a, F32),
            to(b, F32),
            value=math.pow,
        )
    if literal(b) and b.value in (0.5, -0.5):
        return _sqrt(a) if b.value > 0 else _div(1.0, _sqrt(a))
    if literal(a) and a.value is not None and a.value > 0:
        power = _exp2(b if a.value == 2 else _mul(b, math.log2(a.value)))
        if I32 == a.element == b.element and not isinstance(b.expr, Name):  # an index is none below 0
            # as PyTorch's integers have it
            return _where(_comparison("<", operator.lt)(b, 0), float(a.value == 1), power)
        return power
    as_constants(a, b)
    if I32 == a.element == b.element:
        return _whole_power(a, b)
    return make_proxy(build.power(to(a, F32).expr, to(b, F32).expr), F32, to(a, F32), to(b, F32), value=math.pow)


def _whole_power(a: Proxy, b: Proxy) -> Proxy:
    if not literal(b) or b.value is None or not 0 <= b.value <= 31:
        refuse(
            "a power of two integers, which is an integer",
            "give the base as a float: x.float() ** n; an exponent of 0 to 31 may be written as a number",
        )
    power, square, remaining = lift(1), a, int(b.value)
    while remaining:
        power, square, remaining = (
            _mul(power, square) if remaining % 2 else power,
            _mul(square, square) if remaining > 1 else square,
            remaining // 2,
        )
    return power


@handles("neg", "negative")
def _neg(x: object) -> Proxy:
    a = lift(x)
    if a.element == BOOL:
        refuse("the negative of a bool", "~ negates it")
    return make_proxy(Unary("-", a.expr), a.element, a, value=operator.neg)


@handles("pos", "positive", "contiguous", "clone")
def _same(x: object) -> Proxy:
    return lift(x)


@handles("detach", "item")  # item returns a number in PyTorch, which has no gradient
def _detach(x: object) -> Proxy:
    return without_gradient(lift(x))


@handles("abs", "absolute")
def _abs(x: object) -> Proxy:
    a = lift(x)
    return make_proxy(build.magnitude(a.expr), a.element, a, value=abs)


@handles("square")
def _square(x: object) -> Proxy:
    return _pow(x, 2)


def _apply_logical(sign: str, a: Proxy, b: Proxy) -> Proxy:
    op = OPERATORS[sign]
    if isinstance(a.expr, Literal) or isinstance(b.expr, Literal):  # True & x is x
        constant, operand = (a, b) if isinstance(a.expr, Literal) else (b, a)
        if isinstance(constant.expr, Literal) and isinstance(constant.expr.value, bool) and op.traits.decided_by is not None:
            return constant if constant.expr.value is op.traits.decided_by else operand
    return make_proxy(Binary(sign, a.expr, b.expr), a.element, a, b, value=op.evaluate)


def _bitwise(sign: str) -> Handler:
    def handle(x: object, y: object) -> Proxy:
        a, b = promote(x, y)
        if a.element == F32:
            refuse(f"`{sign}` is of bools and integers, found f32")
        return _apply_logical(sign, a, b)

    return handle


def _shift(name: str) -> Handler:
    def handle(x: object, y: object) -> Proxy:
        a, b = lift(x), lift(y)
        as_constants(b)
        if a.element == I32 == b.element and not literal(b):
            return _shift_by_bits(handle, a, b)
        if a.element == F32 or not literal(b) or not isinstance(b.value, int) or not 0 <= b.value < 31:
            refuse("a shift is of integers, by a number from 0 to 30", "// and * by a power of two say the same")
        return _floordiv(a, 2**b.value) if name == "rshift" else _mul(a, 2**b.value)

    return handle


def _shift_by_bits(shift: Handler, x: Proxy, by: Proxy) -> Proxy:
    """Shift by a computed number from 0 to 30: by the powers of two that it consists of."""
    for n in range(5):
        x = _where(_comparison("!=", operator.ne)(_bitwise("&")(by, 1 << n), 0), shift(x, 1 << n), x)
    return x


handles("rshift", "bitwise_right_shift")(_shift("rshift"))
handles("lshift", "bitwise_left_shift")(_shift("lshift"))


def _logical(sign: str) -> Handler:
    return lambda x, y: _apply_logical(sign, to(lift(x), BOOL), to(lift(y), BOOL))


for _sign, _names in (("&", ("and", "bitwise_and")), ("|", ("or", "bitwise_or")), ("^", ("xor", "bitwise_xor"))):
    handles(*_names)(_bitwise(_sign))
    handles(_names[1].replace("bitwise", "logical"))(_logical(_sign))


@handles("invert", "bitwise_not")
def _invert(x: object) -> Proxy:
    a = lift(x)
    if a.element == F32:
        refuse("`~` is of bools and integers, found f32")
    return make_proxy(Unary("~", a.expr), a.element, a, value=lambda v: not v if isinstance(v, bool) else ~v)


@handles("logical_not")
def _logical_not(x: object) -> Proxy:
    return _invert(to(lift(x), BOOL))


def _comparison(sign: str, value: Callable[..., int | float]) -> Handler:
    def handle(x: object, y: object) -> Proxy:
        a, b = promote(x, y)
        if a.element == BOOL:
            op_traits = OPERATORS[sign].traits
            if not op_traits.commutative:
                refuse(f"`{sign}` of bools")
            unequal = _apply_logical("^", a, b)
            return _invert(unequal) if 0 in op_traits.compares else unequal
        comparison = make_proxy(Binary(sign, a.expr, b.expr), BOOL, a, b, value=value)
        exactly(comparison)
        return comparison

    return handle


for _sign, _short, _long in (
    ("==", "eq", "equal"),
    ("!=", "ne", "not_equal"),
    ("<", "lt", "less"),
    ("<=", "le", "less_equal"),
    (">", "gt", "greater"),
    (">=", "ge", "greater_equal"),
):
    handles(_short, _long)(_comparison(_sign, getattr(operator, _short)))


@handles("where")
def _where(cond: object, x: object, y: object) -> Proxy:
    c = to(lift(cond), BOOL)
    if c.value is not None:
        return lift(x if bool(c) else y)
    a, b = promote(x, y)
    if a.element == BOOL:
        return _apply_logical("|", _apply_logical("&", c, a), _apply_logical("&", _invert(c), b))
    if not c.varies and not a.varies and not b.varies:
        return make_proxy(IfExp(c.expr, a.expr, b.expr), a.element, c, a, b)
    # a condition per block, as a tile
    tile = c.expr if c.varies else Binary("&", c.expr, Binary("==", Name("k"), Name("k")))
    choice = make_proxy(build.where(tile, a.expr, b.expr), a.element, c, a, b)
    choice.varies = True
    return choice


def _extremum(call: Callable[..., Call], of_bools: str, value: Callable[..., int | float]) -> Handler:
    def handle(x: object, y: object) -> Proxy:
        a, b = promote(x, y)
        if a.element == BOOL:
            return _apply_logical(of_bools, a, b)
        return make_proxy(call(a.expr, b.expr), a.element, a, b, value=value)

    return handle


_minimum, _maximum = _extremum(build.least, "&", min), _extremum(build.greatest, "|", max)
handles("minimum", "min")(_minimum)
handles("maximum", "max")(_maximum)


def _number_first(name: str, before: Handler, of_integers: Handler) -> None:
    """Enter fmin or fmax into the table of operations: of a NaN and a number the result is the number."""

    @handles(name)
    def handle(x: object, y: object) -> Proxy:
        a, b = promote(x, y)
        if a.element != F32:
            return of_integers(a, b)
        return _where(_apply_logical("|", before(a, b), _comparison("!=", operator.ne)(b, b)), a, b)


_number_first("fmin", _comparison("<=", operator.le), _minimum)
_number_first("fmax", _comparison(">=", operator.ge), _maximum)


def function(call: Callable[[Expr], Call], value: Callable[[float], float]) -> Handler:
    """Return the handler of a function of floats."""

    def handle(x: object) -> Proxy:
        a = to(lift(x), F32)
        return make_proxy(call(a.expr), F32, a, value=value)

    return handle


_exp2, _log2, _tanh = function(build.exp2, lambda v: 2.0**v), function(build.log2, math.log2), function(build.tanh, math.tanh)
_sqrt = function(build.sqrt, math.sqrt)
handles("exp2")(_exp2)
handles("log2")(_log2)
handles("tanh")(_tanh)
handles("sqrt")(_sqrt)
handles("sin")(function(build.sin, math.sin))
handles("cos")(function(build.cos, math.cos))
handles("atan", "arctan")(function(build.atan, math.atan))
handles("erf")(function(build.erf, math.erf))
handles("erfc")(function(build.erfc, math.erfc))


def _of_floats(call: Callable[[Expr], Call], value: Callable[[float], float]) -> Handler:
    """Return the handler of a function to whole numbers, which leaves integers unchanged."""
    of_floats = function(call, value)
    return lambda x: a if (a := lift(x)).element != F32 else of_floats(a)


_floor, _nearest = _of_floats(build.floor, lambda v: float(math.floor(v))), _of_floats(build.nearest, lambda v: float(round(v)))
handles("floor")(_floor)


@handles("trunc", "fix")
def _trunc(x: object) -> Proxy:
    a = lift(x)
    return a if a.element != F32 else _where(_comparison("<", operator.lt)(a, 0), _neg(_floor(_neg(a))), _floor(a))


@handles("round")
def _round(x: object, *, decimals: int = 0) -> Proxy:
    if not decimals:
        return _nearest(x)
    places = 10.0 ** abs(decimals)
    return _div(_nearest(_mul(x, places)), places) if decimals > 0 else _mul(_nearest(_div(x, places)), places)


def _constant(name: str) -> Proxy:
    return Proxy(Name(name), F32, False)


@handles("exp")
def _exp(x: object) -> Proxy:
    return _exp2(_mul(x, _constant("LOG2E")))


@handles("log")
def _log(x: object) -> Proxy:
    return _mul(_log2(x), _constant("LN2"))


@handles("rsqrt")
def _rsqrt(x: object) -> Proxy:
    return _div(1.0, _sqrt(x))


@handles("sigmoid")
def _sigmoid(x: object) -> Proxy:
    value = _div(1.0, _add(1.0, _exp2(_neg(_mul(x, _constant("LOG2E"))))))
    return attach_partials(value, lambda z, x: (_mul(z, _sub(1.0, z)),), x)


@handles("reciprocal")
def _reciprocal(x: object) -> Proxy:
    return _div(1.0, x)


@handles("log10")
def _log10(x: object) -> Proxy:
    return _mul(_log2(x), math.log10(2.0))


@handles("sign", "sgn")
def _signum(x: object) -> Proxy:
    a = lift(x)
    value = to(_sub(to(_comparison(">", operator.gt)(a, 0), I32), to(_comparison("<", operator.lt)(a, 0), I32)), a.element)
    return attach_partials(value, lambda z, x: (0.0,), a)


@handles("silu")
def _silu(x: object, inplace: bool = False) -> Proxy:
    return _mul(x, _sigmoid(x))


@handles("masked_fill")
def _fill_masked(x: object, mask: object, value: object) -> Proxy:
    return _where(mask, to(lift(value), lift(x).element), x)


_DTYPES = {
    torch.float32: F32,
    torch.float64: F32,  # a kernel computes scores in f32
    torch.int32: I32,
    torch.int64: I32,
    torch.bool: BOOL,
}


@handles("to", "type")
def _to(x: object, *args: object, **kwargs: object) -> Proxy:
    requested = [_dtype_of(a) for a in (*args, *kwargs.values())]
    dtypes = [a for a in requested if isinstance(a, (torch.dtype, DType))]
    if not dtypes:
        return lift(x)  # another device
    if dtypes[0] in HALVES:
        return in_half(to(lift(x), F32), HALVES[dtypes[0]])
    dtype = dtypes[0] if isinstance(dtypes[0], DType) else _DTYPES.get(dtypes[0])
    if dtype is None:
        refuse(f"a conversion to {dtypes[0]} cannot become part of a kernel", "torch.float32, torch.int32 or torch.bool")
    return in_f32(lift(x)) if dtype == F32 else to(lift(x), dtype)


def _dtype_of(x: object) -> object:
    """Return the dtype that an argument of `to` or `type` requests.

    It may be given as such, by another tensor, or by the name or class of a kind of tensors.
    """
    if isinstance(x, (Proxy, torch.Tensor)) and not isinstance(x, (bool, int)):
        like = lift(x)
        return next((t for t, d in HALVES.items() if d == like.precision), like.element)
    if isinstance(x, TensorProxy):
        return BOOL if x.boolean else x.into or x.element
    name = x.__name__ if isinstance(x, type) else x.rpartition(".")[2] if isinstance(x, str) else ""
    return getattr(torch, _TENSORS[name]) if name in _TENSORS else x


_TENSORS = {
    "FloatTensor": "float32",
    "DoubleTensor": "float64",
    "HalfTensor": "float16",
    "BFloat16Tensor": "bfloat16",
    "IntTensor": "int32",
    "LongTensor": "int64",
    "BoolTensor": "bool",
}


@handles("float", "double")
def _float(x: object) -> Proxy:
    return in_f32(lift(x))


@handles("half")
def _half(x: object) -> Proxy:
    return in_half(to(lift(x), F32), F16)


@handles("bfloat16")
def _bfloat16(x: object) -> Proxy:
    return in_half(to(lift(x), F32), BF16)


@handles("int", "long")
def _int(x: object) -> Proxy:
    return to(lift(x), I32)


@handles("bool")
def _bool(x: object) -> Proxy:
    return to(lift(x), BOOL)


@handles("type_as")
def _type_as(x: object, y: object) -> Proxy:
    like = lift(y)
    return in_half(to(lift(x), F32), like.precision) if like.precision is not None else to(in_f32(lift(x)), like.element)


def _make_fill_handler(default: float | None) -> Handler:
    """Return the handler of a new scalar like another.

    FlexAttention's and_masks calls `b.new_ones((), dtype=torch.bool)`.
    """

    def handle(x: object, *args: object, dtype: torch.dtype | None = None, fill_value: object = None, **kwargs: object) -> Proxy:
        sizes = [a for a in (*args, kwargs.get("size")) if isinstance(a, (tuple, list, torch.Size))]
        values = [a for a in args if isinstance(a, (bool, int, float, Proxy))]
        if any(len(s) for s in sizes) or (default is not None and values):
            refuse("a mod works on one score: new tensors have no dims", "size ()")
        value = default if default is not None else fill_value if fill_value is not None else values[0] if values else 0
        return to(lift(value), _DTYPES[dtype] if dtype in _DTYPES else lift(x).element)

    return handle


handles("new_ones", "ones_like")(_make_fill_handler(1))
handles("new_zeros", "zeros_like")(_make_fill_handler(0))
handles("new_full", "full_like")(_make_fill_handler(None))


@handles("new_tensor")
def _new_tensor(
    x: object, data: object, dtype: torch.dtype | None = None, device: object = None, requires_grad: bool = False
) -> Proxy | torch.Tensor:
    element_dtype = lift(x).element if dtype is None else _DTYPES.get(dtype)
    if isinstance(data, (list, tuple)):
        return torch.tensor(data, dtype=lift(x).dtype if dtype is None else dtype)
    return lift(data) if element_dtype is None else to(lift(data), element_dtype)
