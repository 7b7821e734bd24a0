"""Floating-point instructions, in f16, bf16, f32, f64 and pairs: rounded once, by the mode that is named.

Approximate ones give one value within the stated bound: the exact function, rounded to f32.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .float_formats import (
    CANONICAL,
    F32,
    F64,
    add_to_odd,
    decode,
    divide_to_odd,
    encode,
    flush,
    fma32,
    fma64,
    get_element,
    saturate,
    take_root_to_odd,
)
from .instruction_table import Array, Meaning, Opcode, UnknownForm, instruction

MODES = ("rn", "rz", "rm", "rp")
CANONICAL_F32 = np.array(CANONICAL["f32"], np.uint32).view(F32)


def make_nan_canonical(a: Array) -> Array:
    """Replace each NaN of f32 by the one that arithmetic gives."""
    nan = np.isnan(a)
    return np.where(nan, CANONICAL_F32, a) if nan.any() else a


def finish(op: Opcode, function: Callable[..., Array]) -> Callable[..., Array]:
    """Wrap a function on f32 by what the modifiers ask for."""
    ftz, sat = op.has("ftz"), op.has("sat")

    def run(*operands: Array) -> Array:
        result = make_nan_canonical(np.asarray(function(*(map(flush, operands) if ftz else operands)), F32))
        result = flush(result) if ftz else result
        return saturate(result) if sat else result

    return run


def in_f64(op: Opcode, exact: Callable[..., Array]) -> Callable[..., Array]:
    """Make a function of any format from one of f64 that rounds to odd."""
    t, mode = op.type, op.pick(*MODES, default="rn")
    sat, relu = op.has("sat"), op.has("relu")
    tiny = F64(2.0**-14)

    def shorten(v: Array) -> Array:
        return np.where(np.abs(v) < tiny, np.copysign(0.0, v), v)

    ftz = op.has("ftz") and get_element(t) == "f16"

    def run(*operands: Array) -> Array:
        numbers = [decode(x, t) for x in operands]
        result = exact(*(map(shorten, numbers) if ftz else numbers))
        if sat:
            result = saturate(result)
        if relu:
            result = np.where(np.isnan(result), result, np.maximum(result, 0.0) + 0.0)
        bits = encode(result, t, mode)
        return encode(shorten(decode(bits, t)), t) if ftz else bits

    return run


def arithmetic(op: Opcode, count: int, plain: Callable[..., Array], exact: Callable[..., Array]) -> Meaning:
    """Make the meaning of arithmetic: by NumPy where it rounds so, else by f64 rounded to odd."""
    op.allow(*MODES, "ftz", "sat", "relu", "full", "approx")
    t, rn = op.type, op.pick(*MODES, default="rn") == "rn"
    if t == "f64":
        if not rn:
            raise UnknownForm(f"rounding of `{op.text}`")
        return Meaning((t,), (t,) * count, plain)
    if t == "f32":
        mode = op.pick(*MODES, default="rn")
        return Meaning((t,), (t,) * count, finish(op, plain if rn else lambda *v: encode(exact(*(x.astype(F64) for x in v)), "f32", mode)))
    return Meaning((t,), (t,) * count, in_f64(op, exact))


def make_float_sum(op: Opcode) -> Meaning:
    """Make the meaning of add and sub."""
    if op.name == "sub":
        return arithmetic(op, 2, np.subtract, lambda a, b: add_to_odd(a, -b))
    return arithmetic(op, 2, np.add, add_to_odd)


def make_float_product(op: Opcode) -> Meaning:
    """Make the meaning of mul and mad."""
    return make_fused(op) if op.name == "mad" else arithmetic(op, 2, np.multiply, np.multiply)


@instruction("fma")
def make_fused(op: Opcode) -> Meaning:
    return arithmetic(op, 3, fma64 if op.type == "f64" else fma32, lambda a, b, c: add_to_odd(a * b, c))


def make_float_quotient(op: Opcode) -> Meaning:
    """Make the meaning of div: `.approx` and `.full` are rounded to nearest too."""
    return arithmetic(op, 2, np.divide, divide_to_odd)


@instruction("rcp")
def make_reciprocal(op: Opcode) -> Meaning:
    return arithmetic(op, 1, lambda a: a.dtype.type(1) / a, lambda a: divide_to_odd(np.ones_like(a), a))


@instruction("sqrt")
def make_root(op: Opcode) -> Meaning:
    return arithmetic(op, 1, np.sqrt, take_root_to_odd)


def approximate(op: Opcode, function: Callable[[Array], Array]) -> Meaning:
    """Make the meaning of an approximate function: computed in f64, rounded to the format."""
    op.allow("approx", "ftz")
    if op.type == "f32":
        return Meaning(("f32",), ("f32",), finish(op, lambda a: function(a.astype(F64)).astype(F32)))
    return Meaning((op.type,), (op.type,), in_f64(op, function))


@instruction("rsqrt")
def make_inverse_root(op: Opcode) -> Meaning:
    return approximate(op, lambda a: 1.0 / np.sqrt(a))


@instruction("ex2")
def make_power(op: Opcode) -> Meaning:
    return approximate(op, np.exp2)


@instruction("lg2")
def make_logarithm(op: Opcode) -> Meaning:
    return approximate(op, np.log2)


@instruction("sin")
def make_sine(op: Opcode) -> Meaning:
    return approximate(op, np.sin)


@instruction("cos")
def make_cosine(op: Opcode) -> Meaning:
    return approximate(op, np.cos)


@instruction("tanh")
def make_tangent(op: Opcode) -> Meaning:
    return approximate(op, np.tanh)


def choose_extremum(op: Opcode) -> Callable[[Array, Array], Array]:
    """Return a function of numbers in f64 or f32 that chooses: -0 below 0, a number before NaN unless `.NaN` says not."""
    largest, keeps_nan, magnitude = op.name == "max", op.has("NaN"), op.has("xorsign")

    def choose(a: Array, b: Array) -> Array:
        x, y = (np.abs(a), np.abs(b)) if magnitude else (a, b)
        first = np.where(x == y, np.signbit(y) if largest else np.signbit(x), (x > y) if largest else (x < y))
        result = np.where(np.isnan(x) | np.isnan(y), np.where(np.isnan(x), y, x), np.where(first, x, y))
        if keeps_nan:
            result = np.where(np.isnan(x) | np.isnan(y), a.dtype.type(np.nan), result)
        return np.copysign(result, np.where(np.signbit(a) ^ np.signbit(b), -1.0, 1.0)).astype(a.dtype) if magnitude else result

    return choose


@instruction("min", "max")
def make_extremum(op: Opcode) -> Meaning:
    t = op.type
    if t[0] in "us" and not t.endswith("x2"):
        op.allow("relu")
        chosen: Callable[[Array, Array], Array] = np.maximum if op.name == "max" else np.minimum
        return Meaning((t,), (t, t), (lambda a, b: np.maximum(chosen(a, b), 0)) if op.has("relu") else chosen)
    if t in ("u16x2", "s16x2"):
        half = np.int16 if t[0] == "s" else np.uint16
        pick = np.maximum if op.name == "max" else np.minimum
        return Meaning((t,), (t, t), lambda a, b: pick(a.view(half), b.view(half)).view(np.uint32))
    op.allow("ftz", "NaN", "xorsign", "abs")
    choose = choose_extremum(op)

    def fold(*operands: Array) -> Array:
        result = operands[0]
        for x in operands[1:]:
            result = choose(result, x)
        return result

    if t == "f32":
        return Meaning((t,), (t, t), finish(op, fold))
    return Meaning((t,), (t, t), fold if t == "f64" else in_f64(op, fold))


SIGN_BITS = {"f16": 0x8000, "bf16": 0x8000, "f16x2": 0x80008000, "bf16x2": 0x80008000, "f32": 1 << 31, "f64": 1 << 63}


@instruction("neg", "abs")
def make_sign_change(op: Opcode) -> Meaning:
    t = op.type
    if t[0] in "us":
        op.allow()
        return Meaning((t,), (t,), np.negative if op.name == "neg" else np.abs)
    op.allow("ftz")
    bits = f"b{8 * (4 if t.endswith('x2') else 2 if '16' in t else int(t[1:]) // 8)}"
    sign, negates, ftz = SIGN_BITS[t], op.name == "neg", op.has("ftz") and t == "f32"

    def change(a: Array) -> Array:
        if ftz:
            a = flush(a.view(F32)).view(a.dtype)
        return a ^ a.dtype.type(sign) if negates else a & a.dtype.type(~sign & (1 << 8 * a.dtype.itemsize) - 1)

    return Meaning((bits,), (bits,), change)


@instruction("copysign")
def make_sign_copy(op: Opcode) -> Meaning:
    op.allow()
    return Meaning((op.type,), (op.type, op.type), lambda a, b: np.copysign(b, a))


@instruction("testp")
def make_property_test(op: Opcode) -> Meaning:
    op.allow("finite", "infinite", "number", "notanumber", "normal", "subnormal")
    least = F32(2.0**-126) if op.type == "f32" else F64(2.0**-1022)
    tests: dict[str, Callable[[Array], Array]] = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "number": lambda a: ~np.isnan(a),
        "notanumber": np.isnan,
        "normal": lambda a: np.isfinite(a) & (np.abs(a) >= least),
        "subnormal": lambda a: (np.abs(a) < least) & (a != 0),
    }
    return Meaning(("pred",), (op.type,), tests[op.modifiers[0]])
