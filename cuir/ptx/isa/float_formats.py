"""Floating-point formats: exact arithmetic in f64 with a sticky bit, rounded once into a format.

A sum that f64 cannot hold is *rounded to odd*: its last bit tells that digits were lost, so that rounding it again, to a
format at least two bits shorter, gives what rounding the exact sum gives.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from .instruction_table import Array

F32, F64, U32, I64 = np.float32, np.float64, np.uint32, np.int64


class Format(NamedTuple):
    """Format of numbers: bits behind the point, exponent of the least normal number, the largest number."""

    mantissa: int
    least: int
    largest: float
    infinite: bool = True


FORMATS = {
    "f16": Format(10, -14, 65504.0),
    "bf16": Format(7, -126, float.fromhex("0x1.fep127")),
    "tf32": Format(10, -126, float.fromhex("0x1.ffcp127")),
    "f32": Format(23, -126, float.fromhex("0x1.fffffep127")),
    "f64": Format(52, -1022, float.fromhex("0x1.fffffffffffffp1023")),
    "e4m3": Format(3, -6, 448.0, False),
    "e5m2": Format(2, -14, 57344.0),
}
CANONICAL = {"f16": 0x7FFF, "bf16": 0x7FFF, "f32": 0x7FFFFFFF, "f64": 0x7FF8000000000000}
HALVES = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(F64)  # faster than NumPy's conversion
STORED: dict[str, type[np.unsignedinteger]] = {"f16": np.uint16, "bf16": np.uint16, "f32": np.uint32, "f64": np.uint64}


def is_float(name: str) -> bool:
    """Return whether a type is one of floating-point numbers, or a pair of them."""
    return name[0] == "f" or name.startswith("bf")


def get_element(name: str) -> str:
    """Return the type of the elements: that of `f16x2` is `f16`."""
    return name.removesuffix("x2")


def decode(a: Array, name: str) -> Array:
    """Return the numbers in f64; a pair becomes two along a last axis."""
    if name.endswith("x2"):
        name = get_element(name)
        a = np.ascontiguousarray(a).view(np.float16 if name == "f16" else np.uint16).reshape(*a.shape, 2)
    if name == "bf16":
        return (a.astype(U32) << U32(16)).view(F32).astype(F64)
    if name == "tf32":
        return (a & U32(0xFFFFE000)).view(F32).astype(F64)
    if name == "f16":
        return HALVES[np.asarray(a, np.float16).view(np.uint16)]
    return a.astype(F64, copy=False)


def encode(a: Array, name: str, mode: str = "rn") -> Array:
    """Round numbers of f64, perhaps with a sticky last bit, into a format; NaN becomes the canonical one."""
    element = get_element(name)
    if element == "f64":
        typed = a
    elif element == "f32" and mode == "rn":
        typed = a.astype(F32)
    else:
        rounded = round_into(a, FORMATS[element], mode)
        typed = rounded.astype(np.float16) if element == "f16" else rounded.astype(F32)
    bits = (typed.view(U32) >> U32(16)).astype(np.uint16) if element == "bf16" else typed.view(STORED[element])
    nan = np.isnan(typed)
    if nan.any():
        bits = np.where(nan, STORED[element](CANONICAL[element]), bits)
    if name.endswith("x2"):
        return np.ascontiguousarray(bits).view(U32).reshape(bits.shape[:-1])
    return bits if element == "bf16" else bits.view(typed.dtype)


def round_into(a: Array, form: Format, mode: str, saturate: bool = False) -> Array:
    """Round numbers of f64 to those that a format has, still in f64.

    mode: rn, rna (ties away from zero), rz, rm (down), rp (up). saturate: beyond the largest number lies that one.
    """
    _, exponent = np.frexp(a)
    quantum = np.ldexp(1.0, np.maximum(exponent - 1, form.least) - form.mantissa)
    q = a / quantum
    if mode == "rn":
        q = np.rint(q)
    elif mode == "rna":
        q = np.copysign(np.floor(np.abs(q) + 0.5), a)
    else:
        q = {"rz": np.trunc, "rm": np.floor, "rp": np.ceil}[mode](q)
    result = np.where(np.isfinite(a), np.copysign(q * quantum, a), a)
    over = np.abs(result) > form.largest
    if over.any():
        stays = saturate | (mode == "rz") | ((mode == "rm") & (a > 0)) | ((mode == "rp") & (a < 0))
        stays = stays & (np.isfinite(a) | saturate)
        result = np.where(over, np.copysign(np.where(stays, form.largest, np.inf), a), result)
    return result


def add_to_odd(p: Array, c: Array) -> Array:
    """Return p + c, rounded to odd."""
    s = np.asarray(p + c)
    b = s - p
    error = (p - (s - b)) + (c - b)
    lost = (error != 0) & np.isfinite(s)
    if not lost.any():
        return s
    bits = s.view(I64)
    nearer = lost & ((error < 0) != np.signbit(s))  # the exact sum lies nearer to zero
    bits = np.where(nearer, bits - 1, bits)
    return np.where(lost, bits | 1, bits).view(F64)


def divide_to_odd(a: Array, b: Array) -> Array:
    """Return a / b of numbers with 24 bits or fewer, rounded to odd."""
    q = np.asarray(a / b)
    error = _subtract_product(a, q, b)
    return _mark_lost(q, error, (error < 0) != np.signbit(a))


def take_root_to_odd(a: Array) -> Array:
    """Return the square root of numbers with 24 bits or fewer, rounded to odd."""
    q = np.sqrt(a)
    error = _subtract_product(a, q, q)
    return _mark_lost(q, error, error < 0)


def _subtract_product(a: Array, x: Array, y: Array) -> Array:
    """Return a - x * y, whose sign is exact."""
    high, low = multiply_exactly(x, y)
    return (a - high) - low


def _mark_lost(q: Array, error: Array, nearer: Array) -> Array:
    """Set the last bit of results that are not exact; nearer: the exact result lies nearer to zero."""
    lost = (error != 0) & np.isfinite(q) & (q != 0)
    bits = q.view(I64)
    return np.where(lost, np.where(nearer, bits - 1, bits) | 1, bits).view(F64)


def multiply_exactly(a: Array, b: Array) -> tuple[Array, Array]:
    """Return a * b in two parts, by Dekker's product."""
    p = a * b
    t = 134217729.0 * a
    ah = t - (t - a)
    t = 134217729.0 * b
    bh = t - (t - b)
    al, bl = a - ah, b - bh
    return p, al * bl - (((p - ah * bh) - al * bh) - ah * bl)


def fma64(a: Array, b: Array, c: Array) -> Array:
    """Return a * b + c in f64, rounded once (Boldo and Melquiond); near the limits of the exponent, by fractions."""
    plain = a * b + c
    uh, ul = multiply_exactly(a, b)
    th = c + ul
    bb = th - c
    tl = (c - (th - bb)) + (ul - bb)
    vh = uh + th
    bb = vh - uh
    vl = (uh - (vh - bb)) + (th - bb)
    result = np.asarray(vh + add_to_odd(tl, vl))
    size = np.abs(uh)
    safe = np.isfinite(result) & (size > 1e-260) & (size < 1e290) & (np.abs(result) > 1e-260)
    if safe.all():
        return result
    result = np.where(safe, result, plain)
    result = np.where(np.isfinite(a) & np.isfinite(b) & np.isinf(c), c, result)  # a product beyond f64 is no infinity
    vectors = np.broadcast_arrays(a, b, c, result)
    finite = np.isfinite(vectors[0]) & np.isfinite(vectors[1]) & np.isfinite(vectors[2])
    for i in np.flatnonzero(finite & ~safe).tolist():
        x, y, z = (Fraction(float(v.flat[i])) for v in vectors[:3])
        if x * y + z:
            result.flat[i] = round_fraction(x * y + z)
    return result


def round_fraction(x: Fraction) -> float:
    """Round a fraction to f64."""
    try:
        return float(x)
    except OverflowError:
        return math.inf if x > 0 else -math.inf


def move_by_mode(r: Array, side: Array, mode: str) -> Array:
    """Return what a mode other than rn gives, for results rounded to nearest; side: the sign of the exact result minus r."""
    down, up = side < 0, side > 0
    if mode == "rz":
        down, up = down & ~np.signbit(r), up & np.signbit(r)
    elif mode == "rm":
        up = np.zeros_like(up)
    else:
        down = np.zeros_like(down)
    return np.where(down, np.nextafter(r, -np.inf), np.where(up, np.nextafter(r, np.inf), r))


def fma32(a: Array, b: Array, c: Array) -> Array:
    """Return a * b + c in f32, rounded once to nearest."""
    p = np.multiply(a, b, dtype=F64)
    s = p + c
    # Rounding twice differs only where the f64 sum lies between two f32 numbers, or is subnormal there.
    doubtful = (s.view(I64) & 0x1FFFFFFF) == 0x10000000
    if doubtful.any() or (np.abs(s) < 2.0**-126).any():
        s = add_to_odd(p, np.asarray(c, F64))
    return s.astype(F32)


def add_to_f32(p: Array, c: Array) -> Array:
    """Return p + c, numbers in f64, rounded once to f32; NaN becomes the canonical one."""
    return encode(add_before_f32(p, c), "f32")


def add_before_f32(p: Array, c: Array) -> Array:
    """Return p + c in f64, so that rounding it to f32 rounds the exact sum."""
    s = np.asarray(p + c)
    doubtful = (s.view(I64) & 0x1FFFFFFF) == 0x10000000
    size = np.abs(s)
    if size.size and not float(size.min()) >= 2.0**-126:  # NaN too
        doubtful |= (size < 2.0**-126) & (s != 0)
    if doubtful.any():
        if all(x.flags.c_contiguous and x.shape == s.shape for x in (p, c, s)):  # NumPy takes numbers faster by their places
            at = np.flatnonzero(doubtful)
            s.reshape(-1)[at] = add_to_odd(p.reshape(-1)[at], c.reshape(-1)[at])
        else:
            s[doubtful] = add_to_odd(p[doubtful], c[doubtful])
    return s


def flush(a: Array, least: float = 2.0**-126) -> Array:
    """Replace numbers below the least normal one by zeros of their sign."""
    tiny = np.abs(a) < a.dtype.type(least)
    return np.where(tiny, np.copysign(a.dtype.type(0), a), a) if tiny.any() else a


def saturate(a: Array) -> Array:
    """Clamp to [0, 1]; NaN becomes 0."""
    return np.where(np.isnan(a), a.dtype.type(0), np.clip(a, a.dtype.type(0), a.dtype.type(1)) + a.dtype.type(0))


def decode_fp8(a: Array, name: str) -> Array:
    """Return bytes of e4m3 or e5m2 as numbers in f64."""
    mantissa, bias = (3, 7) if name == "e4m3" else (2, 15)
    field = (a & 0x7F).astype(np.int32)
    exponent, fraction = field >> mantissa, field & ((1 << mantissa) - 1)
    value = np.where(
        exponent == 0, np.ldexp(fraction, 1 - bias - mantissa), np.ldexp(fraction + (1 << mantissa), exponent - bias - mantissa)
    )
    value = value.astype(F64)
    if name == "e4m3":
        value = np.where(field == 0x7F, np.nan, value)
    else:
        value = np.where(exponent == 31, np.where(fraction == 0, np.inf, np.nan), value)
    return np.where(a & 0x80, -value, value)


def encode_fp8(a: Array, name: str) -> Array:
    """Round numbers to bytes of e4m3 or e5m2; beyond the largest number lies that one (satfinite)."""
    form = FORMATS[name]
    bias = 7 if name == "e4m3" else 15
    r = round_into(a, form, "rn", saturate=True)
    _, exponent = np.frexp(r)
    exponent = np.maximum(exponent - 1, form.least)
    units = np.ldexp(np.abs(r), form.mantissa - exponent)
    units = np.where(np.isfinite(units), units, 0).astype(np.int32)
    normal = units >= 1 << form.mantissa
    bits = np.where(normal, ((exponent + bias) << form.mantissa) + units - (1 << form.mantissa), units)
    bits = np.where(np.isnan(a), 0x7F, bits) | np.where(np.signbit(a) & ~np.isnan(a), 0x80, 0)
    return bits.astype(np.uint8)
