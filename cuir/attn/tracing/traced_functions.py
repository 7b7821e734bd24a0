"""Functions of PyTorch that are composed of others of the table.

Each has a formula that keeps its accuracy where a plain one cancels or overflows. They apply to scores, indices and
elements, and return PyTorch's special values except for the sign of a zero. Primitive operations are in operations.py.
"""

from __future__ import annotations

import math

from ...ops import build_calls as build
from ...ops.expressions import traits
from ...syntax.nodes import Call, Expr
from . import operations  # enters the functions that these are made of
from .operation_table import HANDLERS, handles
from .partial_derivatives import attach_partials
from .proxy import Handler, Proxy, lift
from .refusal import refuse


def _call(name: str, *args: object) -> Proxy:
    result = HANDLERS[name](*args)
    assert isinstance(result, Proxy)
    return result


def _of(name: str) -> Handler:
    return lambda *args: _call(name, *args)


_add, _sub, _mul, _div, _neg, _abs, _where = map(_of, ("add", "sub", "mul", "div", "neg", "abs", "where"))
_eq, _lt, _le, _gt, _ge, _and, _or, _min, _max = map(_of, ("eq", "lt", "le", "gt", "ge", "and", "or", "minimum", "maximum"))
_exp, _exp2, _log, _sqrt, _tanh, _atan, _sin, _cos, _floor = map(_of, ("exp", "exp2", "log", "sqrt", "tanh", "atan", "sin", "cos", "floor"))
_float = _of("float")
_LOG2E, _LN2, _HUGE = math.log2(math.e), math.log(2.0), 1e18  # whose square f32 holds


def _copy_sign(magnitude: Proxy, x: object) -> Proxy:
    """Return a magnitude with the sign of x."""
    return _where(_lt(x, 0), _neg(magnitude), magnitude)


# ---- exponentials and logarithms
@handles("expm1")
def _expm1(x: object) -> Proxy:
    t = _tanh(_mul(x, 0.5))  # accurate near 0, where exp(x) - 1 cancels
    return _where(_lt(_abs(x), 1), _div(_mul(2.0, t), _sub(1.0, t)), _sub(_exp(x), 1.0))


_log1p_of_floats = operations.function(build.log1p, math.log1p)


@handles("log1p")
def _log1p(x: object) -> Proxy:
    x = _float(x)
    return _log(_add(1.0, x)) if _of_integers(x.expr) else _log1p_of_floats(x)  # 1 + x is exact of a whole number


def _of_integers(e: Expr) -> bool:
    """Return True if a float is an integer that was converted."""
    op_traits = traits(e)
    return isinstance(e, Call) and op_traits.converts is not None and not traits(e.args[0]).converts


@handles("logaddexp")
def _logaddexp(x: object, y: object) -> Proxy:
    difference = _where(_eq(x, y), 0.0, _abs(_sub(x, y)))  # of two infinities, too
    less = _exp(_neg(difference))  # the lesser exponential beside the greater one

    def partials(z: Proxy, x: Proxy, y: Proxy) -> tuple[Proxy, ...]:
        total = _add(1.0, less)
        return _div(_where(_lt(x, y), less, 1.0), total), _div(_where(_lt(y, x), less, 1.0), total)

    return attach_partials(_add(_max(x, y), _log1p(less)), partials, x, y)


@handles("logit")
def _logit(x: object, eps: object = None) -> Proxy:
    p = _float(x) if eps is None else _min(_max(x, eps), _sub(1.0, eps))

    def partials(z: Proxy, x: Proxy) -> tuple[Proxy]:
        slope = _div(1.0, _mul(x, _sub(1.0, x)))
        return (slope if eps is None else _where(_or(_lt(x, eps), _gt(x, _sub(1.0, eps))), 0.0, slope),)

    return attach_partials(_log(_div(p, _sub(1.0, p))), partials, x)


@handles("xlogy")
def _xlogy(x: object, y: object) -> Proxy:
    value = _where(_and(_eq(x, 0), _eq(y, y)), 0.0, _mul(x, log := _log(y)))
    return attach_partials(value, lambda z, x, y: (_where(_and(_eq(x, 0), _le(y, 0)), 0.0, log), _div(x, y)), x, y)


@handles("ldexp")
def _ldexp(x: object, y: object) -> Proxy:
    return _mul(x, _exp2(y))


# ---- angles
@handles("tan")
def _tan(x: object) -> Proxy:
    return _div(_sin(x), _cos(x))


@handles("asin", "arcsin")
def _asin(x: object) -> Proxy:
    root = _sqrt(_mul(_sub(1.0, x), _add(1.0, x)))
    return attach_partials(_atan(_div(x, root)), lambda z, x: (_div(1.0, root),), x)


@handles("acos", "arccos")
def _acos(x: object) -> Proxy:
    value = _mul(2.0, _atan(_sqrt(_div(_sub(1.0, x), _add(1.0, x)))))
    return attach_partials(value, lambda z, x: (_div(-1.0, _sqrt(_mul(_sub(1.0, x), _add(1.0, x)))),), x)


@handles("atan2", "arctan2")
def _atan2(y: object, x: object) -> Proxy:
    down, right = _abs(_float(y)), _abs(_float(x))
    most, least = _max(down, right), _min(down, right)
    angle = _atan(_where(_eq(most, 0), 0.0, _where(_eq(least, most), 1.0, _div(least, most))))
    angle = _where(_gt(down, right), _sub(math.pi / 2, angle), angle)

    def partials(z: Proxy, y: Proxy, x: Proxy) -> tuple[Proxy, ...]:
        squares = _add(_mul(y, y), _mul(x, x))
        is_zero = _eq(squares, 0.0)
        return _where(is_zero, 0.0, _div(x, squares)), _where(is_zero, 0.0, _neg(_div(y, squares)))

    return attach_partials(_copy_sign(_where(_lt(x, 0), _sub(math.pi, angle), angle), y), partials, y, x)


@handles("sinc")
def _sinc(x: object) -> Proxy:
    whole = _call("round", x)  # sin(pi x) from the distance to the nearest integer, which is exact
    sine = _sin(_mul(math.pi, _sub(x, whole)))
    odd = _call("ne", _mul(2.0, _floor(_mul(whole, 0.5))), whole)
    return _where(_eq(x, 0), 1.0, _div(_where(odd, _neg(sine), sine), _mul(math.pi, x)))


@handles("deg2rad")
def _deg2rad(x: object) -> Proxy:
    return _mul(x, math.pi / 180)


@handles("rad2deg")
def _rad2deg(x: object) -> Proxy:
    return _mul(x, 180 / math.pi)


@handles("hypot")
def _hypot(x: object, y: object) -> Proxy:
    a, b = _abs(_float(x)), _abs(_float(y))
    most, least = _max(a, b), _min(a, b)
    share = _where(_eq(most, 0), 0.0, _div(least, most))
    value = _where(_or(_isinf(a), _isinf(b)), math.inf, _mul(most, _sqrt(_add(1.0, _mul(share, share)))))
    return attach_partials(value, lambda z, x, y: (_div(x, z), _div(y, z)), x, y)


# ---- hyperbolic functions
def _half_exp(x: object) -> Proxy:
    """Return exp(|x|) / 2, which overflows only where the result does."""
    return _exp2(_sub(_mul(_abs(x), _LOG2E), 1.0))


@handles("sinh")
def _sinh(x: object) -> Proxy:
    t, e = _tanh(_mul(x, 0.5)), _half_exp(x)
    near = _div(_mul(2.0, t), _mul(_sub(1.0, t), _add(1.0, t)))
    value = _where(_lt(_abs(x), 1), near, _copy_sign(_sub(e, _div(0.25, e)), x))
    return attach_partials(value, lambda z, x: (_add(e, _div(0.25, e)),), x)


@handles("cosh")
def _cosh(x: object) -> Proxy:
    e = _half_exp(x)
    return attach_partials(_add(e, _div(0.25, e)), lambda z, x: (_copy_sign(_sub(e, _div(0.25, e)), x),), x)


@handles("asinh", "arcsinh")
def _asinh(x: object) -> Proxy:
    a = _abs(_float(x))
    square = _mul(a, a)
    root = _sqrt(_add(1.0, square))
    near = _log1p(_add(a, _div(square, _add(1.0, root))))
    value = _copy_sign(_where(_lt(a, _HUGE), near, _add(_log(a), _LN2)), x)
    return attach_partials(value, lambda z, x: (_div(1.0, root),), x)


@handles("acosh", "arccosh")
def _acosh(x: object) -> Proxy:
    above = _sub(_float(x), 1.0)
    near = _log1p(_add(above, _mul(_sqrt(above), _sqrt(_add(above, 2.0)))))
    return _where(_lt(x, _HUGE), near, _add(_log(x), _LN2))


@handles("atanh", "arctanh")
def _atanh(x: object) -> Proxy:
    a = _abs(_float(x))
    value = _copy_sign(_mul(0.5, _log1p(_div(_mul(2.0, a), _sub(1.0, a)))), x)
    return attach_partials(value, lambda z, x: (_div(1.0, _mul(_sub(1.0, x), _add(1.0, x))),), x)


# ---- whole numbers, signs, what is no number
@handles("ceil")
def _ceil(x: object) -> Proxy:
    return _neg(_floor(_neg(x)))


@handles("frac")
def _frac(x: object) -> Proxy:
    return _sub(x, _call("trunc", x))


@handles("isnan")
def _isnan(x: object) -> Proxy:
    return _call("ne", x, x)


@handles("isinf")
def _isinf(x: object) -> Proxy:
    return _eq(_abs(_float(x)), math.inf)


@handles("isfinite")
def _isfinite(x: object) -> Proxy:
    return _lt(_abs(_float(x)), math.inf)


@handles("isposinf")
def _isposinf(x: object) -> Proxy:
    return _eq(_float(x), math.inf)


@handles("isneginf")
def _isneginf(x: object) -> Proxy:
    return _eq(_float(x), -math.inf)


@handles("nan_to_num")
def _nan_to_num(x: object, nan: object = 0.0, posinf: object = None, neginf: object = None) -> Proxy:
    most = 3.4028234663852886e38  # of f32
    a = _where(_isnan(x), nan if nan is not None else 0.0, _float(x))
    a = _where(_isposinf(a), most if posinf is None else posinf, a)
    return _where(_isneginf(a), -most if neginf is None else neginf, a)


@handles("isclose")
def _isclose(x: object, y: object, rtol: object = 1e-5, atol: object = 1e-8, equal_nan: bool = False) -> Proxy:
    a, b = _float(x), _float(y)
    difference = _abs(_sub(a, b))
    near = _or(_eq(x, y), _and(_isfinite(difference), _le(difference, _add(atol, _abs(_mul(rtol, b))))))
    return _or(near, _and(_isnan(a), _isnan(b))) if equal_nan else near


@handles("copysign")
def _copysign(x: object, y: object) -> Proxy:
    return _copy_sign(_abs(_float(x)), y)


@handles("heaviside")
def _heaviside(x: object, values: object) -> Proxy:
    return _where(_eq(x, 0), values, _call("float", _gt(x, 0)))


# ---- several operands
@handles("lerp")
def _lerp(x: object, end: object, weight: object) -> Proxy:
    return _add(x, _mul(weight, _sub(end, x)))


@handles("addcmul")
def _addcmul(x: object, a: object, b: object, *, value: object = 1) -> Proxy:
    return _add(x, _mul(_mul(a, b), value))


@handles("addcdiv")
def _addcdiv(x: object, a: object, b: object, *, value: object = 1) -> Proxy:
    return _add(x, _mul(_div(a, b), value))


# ---- bounds
@handles("clamp", "clip")
def _clamp(x: object, min: object = None, max: object = None) -> Proxy:
    value = lift(x)
    value = value if min is None else _max(value, min)
    value = value if max is None else _min(value, max)

    def partials(z: Proxy, x: Proxy, *bounds: Proxy) -> tuple[Proxy, ...]:
        """Return 1 for x within the bounds, these included, and 1 for a bound that x is beyond.

        The upper bound counts where the bounds cross.
        """
        least, most = bounds[0] if min is not None else None, bounds[-1] if max is not None else None
        if most is None:
            return _where(_ge(x, least), 1.0, 0.0), _where(_lt(x, least), 1.0, 0.0)
        if least is None:
            return _where(_le(x, most), 1.0, 0.0), _where(_gt(x, most), 1.0, 0.0)
        below, above = _and(_lt(x, least), _lt(least, most)), _or(_gt(x, most), _lt(most, least))
        return _where(_and(_ge(x, least), _le(x, most)), 1.0, 0.0), _where(below, 1.0, 0.0), _where(above, 1.0, 0.0)

    bounds = [bound for bound in (min, max) if bound is not None]
    return attach_partials(value, partials, x, *bounds) if bounds else value


@handles("clamp_min")
def _clamp_min(x: object, min: object) -> Proxy:
    return _clamp(x, min)


@handles("clamp_max")
def _clamp_max(x: object, max: object) -> Proxy:
    return _clamp(x, None, max)


@handles("relu")
def _relu(x: object, inplace: bool = False) -> Proxy:
    return attach_partials(_max(x, 0), lambda z, x: (_where(_le(x, 0), 0.0, 1.0),), x)


@handles("leaky_relu")
def _leaky_relu(x: object, negative_slope: object = 0.01, inplace: bool = False) -> Proxy:
    value = _where(_ge(x, 0), x, _mul(x, negative_slope))
    return attach_partials(value, lambda z, x: (_where(_gt(x, 0), 1.0, negative_slope),), x)


# ---- activations
def _gelu_by_erfc(x: object) -> Proxy:
    return _mul(_mul(0.5, x), _call("erfc", _mul(x, -math.sqrt(0.5))))  # accurate where the result is near 0, too


def _gelu_by_tanh(x: object) -> Proxy:
    inner = _mul(math.sqrt(2 / math.pi), _add(x, _mul(0.044715, _mul(_mul(x, x), x))))
    return _mul(x, _call("sigmoid", _mul(2.0, inner)))  # (1 + tanh(z)) / 2, where tanh(z) is near -1 too


_GELU = dict(none=_gelu_by_erfc, tanh=_gelu_by_tanh)  # noqa: C408  (words of PyTorch's)


@handles("gelu")
def _gelu(x: object, approximate: str = "none") -> Proxy:
    if approximate not in _GELU:
        refuse(f"gelu with approximate={approximate!r}", f"one of {', '.join(_GELU)}")
    return _GELU[approximate](x)


@handles("softplus")
def _softplus(x: object, beta: object = 1, threshold: object = 20) -> Proxy:
    steep = _mul(_float(x), beta)
    power = _exp(_min(steep, threshold))
    value = _where(far := _gt(steep, threshold), x, _div(_log1p(power), beta))
    return attach_partials(value, lambda z, x: (_where(far, 1.0, _div(power, _add(1.0, power))),), x)


@handles("log_sigmoid", "logsigmoid")
def _logsigmoid(x: object) -> Proxy:
    less = _exp(_neg(_abs(x)))
    value = _sub(_min(x, 0.0), _log1p(less))
    return attach_partials(value, lambda z, x: (_div(_where(_lt(x, 0), 1.0, less), _add(1.0, less)),), x)


@handles("mish")
def _mish(x: object, inplace: bool = False) -> Proxy:
    return _mul(x, _tanh(_softplus(x)))


@handles("elu")
def _elu(x: object, alpha: object = 1.0, inplace: bool = False) -> Proxy:
    value = _where(_gt(x, 0), x, _mul(alpha, _expm1(_min(x, 0.0))))
    return attach_partials(value, lambda z, x: (_where(_le(x, 0), _mul(alpha, _exp(x)), 1.0),), x)


@handles("selu")
def _selu(x: object, inplace: bool = False) -> Proxy:
    return _mul(1.0507009873554805, _elu(x, 1.6732632423543772))


@handles("celu")
def _celu(x: object, alpha: object = 1.0, inplace: bool = False) -> Proxy:
    value = _where(_gt(x, 0), x, _mul(alpha, _expm1(_div(_min(x, 0.0), alpha))))
    return attach_partials(value, lambda z, x: (_where(_le(x, 0), _exp(_div(x, alpha)), 1.0),), x)


@handles("hardtanh")
def _hardtanh(x: object, min_val: object = -1.0, max_val: object = 1.0, inplace: bool = False) -> Proxy:
    value = _min(_max(x, min_val), max_val)
    # 1 of NaN
    return attach_partials(value, lambda z, x: (_where(_or(_le(x, min_val), _ge(x, max_val)), 0.0, 1.0),), x)


@handles("relu6")
def _relu6(x: object, inplace: bool = False) -> Proxy:
    return _hardtanh(x, 0.0, 6.0)


@handles("hardsigmoid")
def _hardsigmoid(x: object, inplace: bool = False) -> Proxy:
    value = _div(_hardtanh(_add(x, 3.0), 0.0, 6.0), 6.0)
    return attach_partials(value, lambda z, x: (_where(_and(_gt(x, -3.0), _lt(x, 3.0)), 1 / 6, 0.0),), x)


@handles("hardswish")
def _hardswish(x: object, inplace: bool = False) -> Proxy:
    def partials(z: Proxy, x: Proxy) -> tuple[Proxy]:
        return (_where(_le(x, -3.0), 0.0, _where(_lt(x, 3.0), _add(_div(x, 3.0), 0.5), 1.0)),)

    return attach_partials(_mul(x, _hardsigmoid(x)), partials, x)


@handles("softsign")
def _softsign(x: object) -> Proxy:
    return _div(x, _add(1.0, _abs(x)))


@handles("threshold")
def _threshold(x: object, threshold: object, value: object, inplace: bool = False) -> Proxy:
    return _where(_le(x, threshold), value, x)


@handles("prelu")
def _prelu(x: object, weight: object) -> Proxy:
    return _where(_gt(x, 0), x, _mul(weight, x))


@handles("tanhshrink")
def _tanhshrink(x: object) -> Proxy:
    return _sub(x, _tanh(x))


@handles("softshrink")
def _softshrink(x: object, lambd: object = 0.5) -> Proxy:
    value = _where(_gt(x, lambd), _sub(x, lambd), _where(_lt(x, _neg(lambd)), _add(x, lambd), _mul(x, 0.0)))
    # 1 of NaN
    return attach_partials(value, lambda z, x: (_where(_and(_ge(x, _neg(lambd)), _le(x, lambd)), 0.0, 1.0),), x)


@handles("hardshrink")
def _hardshrink(x: object, lambd: object = 0.5) -> Proxy:
    return _where(_and(_ge(x, _neg(lambd)), _le(x, lambd)), 0.0, x)
