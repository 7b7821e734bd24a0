"""Floating-point instructions, in f16, bf16, f32, f64 and pairs: rounded once, by the mode that is named.

Approximate ones give one value within the stated bound: the exact function, rounded to f32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

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
    move_by_mode,
    saturate,
    take_root_to_odd,
)
from .instruction_table import Array, Meaning, Opcode, instruction

MODES = ("rn", "rz", "rm", "rp")
LEAST_F16 = 2.0**-14
NEW_NAN, QUIET = np.uint64(0xFFF8 << 48), np.uint64(1 << 51)  # of f64: the NaN of an invalid operation; the bit of a quiet one
CANONICAL_F32 = np.array(CANONICAL["f32"], np.uint32).view(F32)


def make_nan_canonical(a: Array) -> Array:
    """Replace each NaN of f32 by the one that arithmetic gives."""
    return np.where(np.isnan(a), CANONICAL_F32, a) if has_nan(a) else a


def has_nan(a: Array) -> bool:
    """Return whether there is a NaN among numbers: the sum of squares is NaN for that reason alone."""
    flat = a.reshape(-1)
    square = flat.dot(flat)
    return bool(square != square)


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
    ftz = op.has("ftz") and get_element(t) == "f16"

    def run(*operands: Array) -> Array:
        numbers = [decode(x, t) for x in operands]
        result = exact(*((flush(x, LEAST_F16) for x in numbers) if ftz else numbers))
        if sat:
            result = saturate(result)
        if relu:
            result = np.where(np.isnan(result), result, np.maximum(result, 0.0) + 0.0)
        bits = encode(result, t, mode)
        return encode(flush(decode(bits, t), LEAST_F16), t) if ftz else bits

    return run


def arithmetic(op: Opcode, count: int, plain: Callable[..., Array], exact: Callable[..., Array]) -> Meaning:
    """Make the meaning of arithmetic: by NumPy where it rounds so, else by f64 rounded to odd."""
    op.allow(*MODES, "ftz", "sat", "relu", "full", "approx")
    t, mode = op.type, op.pick(*MODES, default="rn")
    if t == "f64":
        rounded64 = plain if mode == "rn" else sign_sums(op.name, mode, round_by_fractions(op.name, mode, plain))
        return Meaning((t,), (t,) * count, keep_payload(rounded64, first=op.name == "div"))
    if t == "f32":

        def rounded(*operands: Array) -> Array:
            return encode(exact(*(x.astype(F64) for x in operands)), "f32", mode)

        function = plain if mode == "rn" else sign_sums(op.name, mode, rounded)
        early = op.has("ftz") and op.name in ("mul", "fma", "div", "rcp") and not op.has("approx", "full")
        return Meaning((t,), (t,) * count, finish(op, flush_early(function, exact) if early else function))
    return Meaning((t,), (t,) * count, in_f64(op, exact))


def flush_early(function: Callable[..., Array], exact: Callable[..., Array]) -> Callable[..., Array]:
    """Flush results that only their rounding makes normal, as the hardware does for products and quotients."""

    def run(*operands: Array) -> Array:
        r = np.asarray(function(*operands))
        least = np.abs(r) == F32(2.0**-126)
        if not least.any():
            return r
        tiny = least & (np.abs(exact(*(x.astype(F64) for x in operands))) < 2.0**-126)
        return np.where(tiny, np.copysign(F32(0), r), r)

    return run


def keep_payload(function: Callable[..., Array], first: bool = False) -> Callable[..., Array]:
    """Make a function of f64 give NaN as the hardware does: an operand that is one, made quiet, or -NaN.

    The second operand counts most, the first least; first: the first counts most.
    """

    def run(*operands: Array) -> Array:
        result = np.asarray(function(*operands))
        nan = np.isnan(result)
        if not nan.any():
            return result
        bits = np.full(result.shape, NEW_NAN)
        for x in operands[::-1] if first else (operands[0], *operands[:0:-1]):
            bits = np.where(np.isnan(x), x.view(np.uint64) | QUIET, bits)
        return np.where(nan, bits.view(F64), result)

    return run


Exact = Callable[..., Fraction]
RESTS: dict[str, Exact] = {  # sign of the exact result minus r
    "add": lambda r, a, b: a + b - r,
    "sub": lambda r, a, b: a - b - r,
    "mul": lambda r, a, b: a * b - r,
    "fma": lambda r, a, b, c: a * b + c - r,
    "div": lambda r, a, b: (a - r * b) * b,
    "rcp": lambda r, a: (1 - r * a) * a,
    "sqrt": lambda r, a: a - r * r,
}


def round_by_fractions(name: str, mode: str, nearest: Callable[..., Array]) -> Callable[..., Array]:
    """Make a function of f64 that rounds by another mode from one that rounds to nearest."""
    rest = RESTS[name]

    def run(*operands: Array) -> Array:
        r = np.asarray(nearest(*operands))
        vectors = [np.broadcast_to(x, r.shape) for x in operands]
        known = np.isfinite(vectors).all(0) & ~np.isnan(r)
        if name in ("div", "rcp"):
            known &= vectors[-1] != 0
        side = np.where(known & np.isinf(r), -np.sign(r), 0.0)
        for i in np.flatnonzero(known & np.isfinite(r)).tolist():
            exact = rest(*(Fraction(float(v.flat[i])) for v in (r, *vectors)))
            side.flat[i] = (exact > 0) - (exact < 0)
        return move_by_mode(r, side, mode)

    return run


def sign_sums(name: str, mode: str, function: Callable[..., Array]) -> Callable[..., Array]:
    """Give sums of opposite numbers the sign that they have if rounded down: -0."""
    if mode != "rm" or name not in ("add", "sub", "fma"):
        return function

    def run(*operands: Array) -> Array:
        r = np.asarray(function(*operands))
        *factors, last = operands
        first = np.signbit(factors[0]) ^ np.signbit(factors[1]) if name == "fma" else np.signbit(factors[0])
        negative = first | (np.signbit(last) ^ (name == "sub"))
        return np.where((r == 0) & ~np.signbit(r) & negative & is_zero_sum(name, operands), -r, r)

    return run


def is_zero_sum(name: str, operands: Sequence[Array]) -> Array:
    """Return which sums are exactly zero."""
    if name == "fma":
        a, b, c = operands
        product = a.astype(F64) * b
        return np.where(product == 0, ((a == 0) | (b == 0)) & (c == 0), (product == -c) & (fma64(*(x.astype(F64) for x in operands)) == 0))
    a, b = operands
    return a == (b if name == "sub" else -b)


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
        if not magnitude:
            result = np.maximum(a, b) if largest else np.minimum(a, b)
            if not has_nan(result):
                zero = result == 0
                if not zero.any():
                    return result
                negative = np.signbit(a) & np.signbit(b) if largest else np.signbit(a) | np.signbit(b)
                return np.where(zero, np.where(negative, a.dtype.type(-0.0), a.dtype.type(0)), result)
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
        relu = op.has("relu")

        def of_halves(a: Array, b: Array) -> Array:
            chosen = pick(a.view(half), b.view(half))
            return (np.maximum(chosen, 0) if relu else chosen).view(np.uint32)

        return Meaning((t,), (t, t), of_halves)
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


SIGN_BITS = {"f16": 1 << 15, "bf16": 1 << 15, "f32": 1 << 31, "f64": 1 << 63}
INFINITIES = {"f16": 0x7C00, "bf16": 0x7F80, "f32": 0x7F800000, "f64": 0x7FF << 52}
LEAST_NORMAL = {"f16": 1 << 10, "bf16": 1 << 7, "f32": 1 << 23, "f64": 1 << 52}


@instruction("neg", "abs")
def make_sign_change(op: Opcode) -> Meaning:
    t = op.type
    if t[0] in "us":
        op.allow()
        return Meaning((t,), (t,), np.negative if op.name == "neg" else np.abs)
    op.allow("ftz")
    bits = f"b{8 * (4 if t.endswith('x2') else 2 if '16' in t else int(t[1:]) // 8)}"
    element, negates, ftz = get_element(t), op.name == "neg", op.has("ftz")
    sign, infinity = SIGN_BITS[element], INFINITIES[element]

    def change(whole: Array) -> Array:
        a = np.ascontiguousarray(whole).view(f"u{SIGN_BITS[element].bit_length() // 8}")
        magnitude = a & a.dtype.type(sign - 1)
        result = a ^ a.dtype.type(sign) if negates else magnitude
        if ftz:
            result = np.where(magnitude < LEAST_NORMAL[element], result & a.dtype.type(sign), result)
        nan = a if element == "f64" else a.dtype.type(CANONICAL[element])
        return np.where(magnitude > infinity, nan, result).view(whole.dtype).reshape(whole.shape)

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
        "normal": lambda a: np.isfinite(a) & ((np.abs(a) >= least) | (a == 0)),  # zero is called normal
        "subnormal": lambda a: (np.abs(a) < least) & (a != 0),
    }
    return Meaning(("pred",), (op.type,), tests[op.modifiers[0]])
