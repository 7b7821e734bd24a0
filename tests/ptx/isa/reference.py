"""References for instructions: exact fractions, rounded into a format by the definition; and random bits with special values."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from cuir.ptx.isa.float_formats import FORMATS

SPECIAL32 = [0, 1, 0x7FFFFF, 0x800000, 0x3F800000, 0x3F800001, 0x7F7FFFFF, 0x7F800000, 0x7FC00000, 0x33800000, 0x4B800000, 0x7F000000]


def draw_bits(width: int, count: int = 400, seed: int = 0) -> np.ndarray:
    """Random bits: whole range, near 1, and special values of either sign."""
    generator = np.random.default_rng(seed)
    bits = generator.integers(0, 1 << width, count, dtype=np.uint64)
    if width == 32:
        bits[: count // 2] = generator.integers(0x3F000000, 0x40800000, count // 2) ^ (generator.integers(0, 2, count // 2) << 31)
        special = np.array(SPECIAL32, np.uint64)
        bits[-2 * len(special) :] = generator.permutation(np.concatenate([special, special | 1 << 31]))
    return bits.astype(f"u{width // 8}")


def round_exactly(x: Fraction, name: str, mode: str) -> float:
    """Round a fraction other than 0 into a format, by the definition."""
    form = FORMATS[name]
    magnitude = abs(x)
    exponent = math.floor(math.log2(magnitude)) if magnitude.numerator.bit_length() < 900 else 0
    while Fraction(2) ** exponent > magnitude:
        exponent -= 1
    while Fraction(2) ** (exponent + 1) <= magnitude:
        exponent += 1
    quantum = Fraction(2) ** (max(exponent, form.least) - form.mantissa)
    units = x / quantum
    low = math.floor(units)
    rest = units - low
    if mode == "rn":
        whole = low + (rest > Fraction(1, 2) or (rest == Fraction(1, 2) and low % 2 == 1))
    else:
        whole = low if mode == "rm" or (mode == "rz" and x > 0) else low + (rest > 0)
    value = whole * quantum
    if abs(value) > Fraction(form.largest):
        stays = mode == "rz" or (mode == "rm" and x > 0) or (mode == "rp" and x < 0)
        return math.copysign(form.largest if stays else math.inf, x)
    return float(value) if value else math.copysign(0.0, x)
