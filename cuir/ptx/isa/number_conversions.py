"""Conversions between integers and floating-point formats, bit by bit."""

from __future__ import annotations

import numpy as np

from .float_formats import (
    F32,
    F64,
    FORMATS,
    STORED,
    decode,
    decode_fp8,
    encode,
    encode_fp8,
    flush,
    is_float,
    move_by_mode,
    round_into,
    saturate,
)
from .floats import make_nan_canonical
from .instruction_table import DTYPES, Array, Meaning, Opcode, UnknownForm, get_width, instruction

TO_INTEGER = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
MODES = ("rn", "rz", "rm", "rp", "rna")
FP8 = ("e4m3x2", "e5m2x2")
TF32 = np.uint32(0xFFFFE000)  # bits of a number in tf32


@instruction("cvt")
def make_conversion(op: Opcode) -> Meaning:
    op.allow(*TO_INTEGER, *MODES, "ftz", "sat", "satfinite", "relu")
    target, source = (op.types[0], op.types[-1]) if len(op.types) == 2 else ("", "")
    if not target:
        raise UnknownForm(f"the types of `{op.text}`")
    if target in FP8 or source in FP8:
        return make_fp8_conversion(op, target, source)
    if target.endswith("x2") or (target == "tf32"):
        return make_packing(op, target, source)
    if not is_float(source):
        return from_integer(op, target, source)
    return between_floats(op, target, source) if is_float(target) else to_integer(op, target, source)


def from_integer(op: Opcode, target: str, source: str) -> Meaning:
    """Convert an integer."""
    if not is_float(target):
        into = DTYPES[target]
        if not op.has("sat"):
            return Meaning((target,), (source,), lambda a: a.astype(into))
        low, high = np.iinfo(np.dtype(into)).min, np.iinfo(np.dtype(into)).max

        def clamp(a: Array) -> Array:
            bottom = max(low, np.iinfo(a.dtype).min)
            return np.clip(a, a.dtype.type(bottom), a.dtype.type(min(high, np.iinfo(a.dtype).max))).astype(into)

        return Meaning((target,), (source,), clamp)
    mode = op.pick(*MODES, default="rn")
    wide = get_width(source) == 64

    def convert(a: Array) -> Array:
        numbers = a.astype(F64)
        if wide and (target != "f64" or mode != "rn"):
            back = numbers.astype(np.longdouble)
            exact = a.astype(np.longdouble)
            if target == "f64":
                return move_by_mode(numbers, np.sign(exact - back), mode)
            # Keep what f64 loses of 64-bit integers as its last bit.
            bits = numbers.view(np.int64) - (np.abs(back) > np.abs(exact))
            numbers = np.where(back != exact, bits | 1, numbers.view(np.int64)).view(F64)
        result = encode(numbers, target, mode)
        return saturate(result) if op.has("sat") else result

    return Meaning((target,), (source,), convert)


def to_integer(op: Opcode, target: str, source: str) -> Meaning:
    """Convert a number to an integer: what is out of range gives the nearest integer in it.

    NaN gives 0; the highest bit alone where the number is an f64, or the integer has 64 bits.
    """
    round_whole = TO_INTEGER[op.pick(*TO_INTEGER, default="rzi")]
    limits = np.iinfo(np.dtype(DTYPES[target]))
    width = get_width(target)
    top = float(limits.max) if width < 64 else np.nextafter(float(limits.max), 0)
    highest = np.array(1 << width - 1, f"u{width // 8}").view(DTYPES[target])
    of_nan = highest if source == "f64" or width == 64 else DTYPES[target](0)

    def convert(a: Array) -> Array:
        numbers = decode(flush(a) if op.has("ftz") and source == "f32" else a, source)
        whole = round_whole(numbers)
        nan = np.isnan(whole)
        inside = np.clip(np.where(nan, 0.0, whole), float(limits.min), top).astype(DTYPES[target])
        result = np.where(whole > top, DTYPES[target](limits.max), inside)
        return np.where(nan, of_nan, result) if nan.any() else result

    return Meaning((target,), (source,), convert)


def between_floats(op: Opcode, target: str, source: str) -> Meaning:
    """Convert between formats, or round to a whole number in one."""
    whole = TO_INTEGER.get(op.pick(*TO_INTEGER))
    mode, ftz = op.pick(*MODES, default="rn"), op.has("ftz")

    def convert(a: Array) -> Array:
        numbers = decode(flush(a) if ftz and source == "f32" else a, source)
        numbers = whole(numbers) if whole is not None else numbers
        if op.has("sat"):
            numbers = saturate(numbers)
        if op.has("relu"):
            numbers = np.where(np.isnan(numbers), numbers, np.maximum(numbers, 0.0) + 0.0)
        result = encode(numbers, target, mode)
        result = flush(result) if ftz and target == "f32" else result
        if not keeps_payload:
            return result
        return move_payload(make_nan_canonical(a) if ftz and source == "f32" else a, source, result, target)

    keeps_payload = ("f64" in (target, source) or (source, target) == ("bf16", "f32")) and not op.has("sat", "relu")
    return Meaning((target,), (source,), convert)


def move_payload(a: Array, source: str, result: Array, target: str) -> Array:
    """Give NaN the sign and the first bits of the one that was converted, made quiet unless its bits are shifted alone."""
    raw, into = STORED[source], STORED[target]
    bits = a.view(raw).astype(np.uint64)
    nan = np.isnan(decode(a, source))
    if not nan.any():
        return result
    widths, mantissas = (get_width(source), get_width(target)), (FORMATS[source].mantissa, FORMATS[target].mantissa)
    fraction = bits & np.uint64((1 << mantissas[0]) - 1)
    shift = mantissas[1] - mantissas[0]
    fraction = fraction << np.uint64(shift) if shift >= 0 else fraction >> np.uint64(-shift)
    sign = (bits >> np.uint64(widths[0] - 1)) << np.uint64(widths[1] - 1)
    exponent, first = (1 << widths[1] - 1) - (1 << mantissas[1]), 1 << mantissas[1] - 1
    quiet = exponent if source == "bf16" and target == "f32" else exponent | first  # the former is a shift
    moved = (sign | fraction | np.uint64(quiet)).astype(into)
    return np.where(nan, moved, result.view(into)).view(result.dtype)


def pack_nearest(a: Array, b: Array, target: str) -> Array | None:
    """Return pairs of 16 bits, rounded to nearest by what NumPy has; None if there is a NaN."""
    pair = np.empty((*np.broadcast_shapes(a.shape, b.shape), 2), F32)
    pair[..., 0], pair[..., 1] = b, a
    if np.isnan(pair).any():
        return None
    if target == "f16x2":
        return pair.astype(np.float16).view(np.uint32)[..., 0]
    bits = pair.view(np.uint32)
    bits += np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))
    return (bits >> np.uint32(16)).astype(np.uint16).view(np.uint32)[..., 0]


def make_packing(op: Opcode, target: str, source: str) -> Meaning:
    """Convert two f32 numbers to a pair, the first into its upper half; or one to tf32."""
    if source != "f32":
        raise UnknownForm(f"the types of `{op.text}`")
    mode = op.pick(*MODES, default="rn")
    if target == "tf32":
        return make_tf32(op, mode)

    plain = mode == "rn" and not op.has("relu", "satfinite")

    def pack(a: Array, b: Array) -> Array:
        if plain and target in ("f16x2", "bf16x2"):
            packed = pack_nearest(a, b, target)
            if packed is not None:
                return packed
        numbers = np.stack(np.broadcast_arrays(b, a), -1).astype(F64)
        if op.has("relu"):
            numbers = np.where(np.isnan(numbers), numbers, np.maximum(numbers, 0.0) + 0.0)
        if op.has("satfinite"):
            numbers = round_into(numbers, FORMATS[target[:-2]], mode, saturate=True)
        return encode(numbers, target, mode)

    return Meaning((target,), ("f32", "f32"), pack)


def make_tf32(op: Opcode, mode: str) -> Meaning:
    """Convert f32 to tf32, whose last 13 bits are zero; `.rna` keeps what it can of NaN."""
    finite, relu = op.has("satfinite"), op.has("relu")

    def convert(a: Array) -> Array:
        numbers = a.astype(F64)
        numbers = np.where(numbers <= 0, 0.0, numbers) if relu else numbers
        bits = round_into(numbers, FORMATS["tf32"], mode, saturate=finite).astype(F32).view(np.uint32)
        nan = np.isnan(a)
        return np.where(nan, a.view(np.uint32) & TF32 if mode == "rna" else np.uint32(0x7FFFFFFF) & TF32, bits) if nan.any() else bits

    return Meaning(("b32",), ("f32",), convert)


def make_fp8_conversion(op: Opcode, target: str, source: str) -> Meaning:
    """Convert pairs of 8-bit floating-point numbers."""
    if target in FP8:
        name = target[:-2]

        def narrow(*operands: Array) -> Array:
            pair = (
                decode(operands[0], source)
                if len(operands) == 1
                else np.stack(np.broadcast_arrays(operands[1], operands[0]), -1).astype(F64)
            )
            if op.has("relu"):
                pair = np.where(np.isnan(pair), pair, np.maximum(pair, 0.0) + 0.0)
            return np.ascontiguousarray(encode_fp8(pair, name)).view(np.uint16).reshape(pair.shape[:-1])

        return Meaning((target,), ("f32", "f32") if source == "f32" else (source,), narrow)
    if target not in ("f16x2", "bf16x2"):
        raise UnknownForm(f"the types of `{op.text}`")

    def widen(a: Array) -> Array:
        octets = np.ascontiguousarray(a).view(np.uint8).reshape(*a.shape, 2)
        numbers = decode_fp8(octets, source[:-2])
        if op.has("relu"):
            numbers = np.where(np.isnan(numbers), numbers, np.maximum(numbers, 0.0) + 0.0)
        return encode(numbers, target)

    return Meaning((target,), (source,), widen)
