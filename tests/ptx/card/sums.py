"""How the tensor cores of an H200 sum the products of an instruction, as its results show bit by bit.

The products, which are exact, and the accumulator are aligned to the largest of them, and cut off behind some bits; the sum
is cut off to the accumulator's bits. An exponent of a product is the sum of those of its factors.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .forms import Array

NONE = -(1 << 20)  # exponent of zero


class Sums(NamedTuple):
    """How an instruction sums.

    Attributes:
        aligned: Bits behind the point that an addend keeps, counted from the largest one's first bit.
        kept: Those that the sum keeps, counted from its own first bit.
    """

    aligned: int
    kept: int


WIDE = Sums(25, 23)  # f16, bf16, tf32
NARROW = Sums(13, 13)  # wgmma of 8-bit numbers into f32
NARROW_TO_F16 = Sums(13, 23)  # and into f16, rounded to nearest


def find_exponents(x: Array) -> Array:
    """Return the exponents of numbers."""
    return np.where(x == 0, NONE, np.frexp(x)[1] - 1)


def cut_off(x: Array, exponents: Array, bits: int) -> Array:
    """Return numbers without what lies behind some bits of an exponent."""
    units = np.ldexp(1.0, np.maximum(exponents, -1000) - bits)
    return np.trunc(x / units) * units


def add_products(a: Array, b: Array, c: Array, how: Sums) -> Array:
    """Return a @ b.T + c as one instruction sums it; all in f64."""
    products = a[:, None] * b[None]
    exponents = find_exponents(a)[:, None] + find_exponents(b)[None]
    largest = np.maximum(exponents.max(-1), find_exponents(c))
    total = cut_off(products, largest[..., None], how.aligned).sum(-1) + cut_off(c, largest, how.aligned)
    return cut_off(total, find_exponents(total), how.kept)


def add_by_halves(a: Array, b: Array, c: Array, dtype: type[np.floating]) -> Array:
    """Return a @ b.T + c as mma.sync of 8-bit numbers sums it, by two products of f16: the accumulator comes last.

    The first product takes the first two of each four neighbours along the inner dim; each sum is rounded to the dtype.
    """
    total = np.zeros_like(c)
    last = np.arange(a.shape[1]) % 4 >= 2
    for half in (~last, last):
        total = add_products(a[:, half], b[:, half], total, WIDE).astype(dtype).astype(np.float64)
    return (total + c).astype(dtype).astype(np.float64)
