"""Integers in each thread and for each value of loop variables, with the arithmetic of PTX.

A number is an array whose last axis is the thread (of size 1 where all threads agree); each further axis belongs to a
variable that has several values, so that results of one variable stay related. Each element is known, unknown (data,
parameters), or absent (no thread gets there with it).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cuir.ptx.isa.logic import COMPARISONS

ABSENT, UNKNOWN, CERTAIN = 0, 1, 2
MOST = 1 << 18  # elements of a number
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Number:
    """Array of integers with a state for each element.

    `data` and `state` have one axis for each of `axes`, then threads or 1.
    """

    axes: tuple[str, ...]
    data: Ints
    state: NDArray[np.int8]

    @property
    def rows(self) -> tuple[Ints, NDArray[np.int8]]:
        """Data and state as matrices: a row for each combination of the variables' values."""
        data, state = np.broadcast_arrays(self.data, self.state)
        return data.reshape(-1, data.shape[-1]), state.reshape(-1, state.shape[-1])

    @property
    def all_known(self) -> bool:
        """True if all elements are known."""
        return bool((self.state == CERTAIN).all())


def of(value: int) -> Number:
    """Return a constant."""
    return Number((), np.array([value], np.int64), np.array([CERTAIN], np.int8))


UNKNOWN_NUMBER = Number((), np.zeros(1, np.int64), np.array([UNKNOWN], np.int8))


def of_threads(values: Sequence[int] | Ints) -> Number:
    """Return a number that differs from thread to thread."""
    data = np.asarray(values, np.int64)
    return Number((), data, np.full(data.shape, CERTAIN, np.int8))


def of_rows(name: str, data: Ints, state: NDArray[np.int8]) -> Number:
    """Return the number of a variable with these values, one a row."""
    return Number((name,), data, state)


def align(numbers: Sequence[Number]) -> tuple[tuple[str, ...], list[Ints], list[NDArray[np.int8]]]:
    """Return all axes of some numbers, and their arrays with an axis for each.

    A variable gets values one after another: where one number has fewer of them than another, the shorter range counts
    until it is recomputed.
    """
    axes = tuple(sorted({a for n in numbers for a in n.axes}))
    sizes: dict[str, int] = {}
    for n in numbers:
        for a, size in zip(n.axes, n.data.shape):
            sizes[a] = min(size, sizes.get(a, size))
    datas, states = [], []
    for n in numbers:
        shape = [1] * len(axes)
        for a in n.axes:
            shape[axes.index(a)] = sizes[a]
        window = tuple(slice(sizes[a]) for a in n.axes)
        datas.append(n.data[window].reshape(*shape, n.data.shape[-1]))
        states.append(n.state[window].reshape(*shape, n.state.shape[-1]))
    return axes, datas, states


def extent(numbers: Sequence[Number]) -> int:
    """Return the number of elements of a result of these numbers."""
    sizes = {a: s for n in numbers for a, s in zip(n.axes, n.data.shape)}
    threads = max((n.data.shape[-1] for n in numbers), default=1)
    return math.prod(sizes.values(), start=threads)


def apply(function: Callable[..., Ints], *numbers: Number) -> Number:
    """Apply a function to elements; a result that is too large is unknown."""
    if extent(numbers) > MOST:
        return UNKNOWN_NUMBER
    axes, datas, states = align(numbers)
    state = states[0]
    for s in states[1:]:
        state = np.minimum(state, s)
    with np.errstate(all="ignore"):
        data = np.asarray(function(*datas), np.int64)
    shape = np.broadcast_shapes(data.shape, state.shape)
    return Number(axes, np.broadcast_to(data, shape), np.broadcast_to(state, shape))


def choose(condition: Number, positive: Number, negative: Number) -> Number:
    """Select `positive` where the condition holds, else `negative`; unknown where that decides."""
    if extent((condition, positive, negative)) > MOST:
        return UNKNOWN_NUMBER
    axes, (c, a, b), (sc, sa, sb) = align((condition, positive, negative))
    data = np.where(c != 0, a, b)
    state = np.where(
        sc == CERTAIN, np.where(c != 0, sa, sb), np.where((sa == CERTAIN) & (sb == CERTAIN) & (a == b), CERTAIN, np.minimum(sc, UNKNOWN))
    )
    shape = np.broadcast_shapes(data.shape, state.shape)
    return Number(axes, np.broadcast_to(data, shape), np.broadcast_to(state.astype(np.int8), shape))


# ---- PTX
def wrap(data: Ints, bits: int) -> Ints:
    """Wrap integers to a width, with sign."""
    if bits >= 64:
        return data
    low = data & ((1 << bits) - 1)
    return np.where(low >> (bits - 1) & 1, low - (1 << bits), low)


def as_unsigned(data: Ints, bits: int) -> Ints:
    """Reinterpret integers as unsigned; of 64 bits only those that an i64 holds."""
    return data & ((1 << bits) - 1) if bits < 64 else data


TYPES = re.compile(r"(?<=\.)([subf])(8|16|32|64)(?=\.|$)")


def width(op: str) -> tuple[str, int]:
    """Return the first type of an instruction: its letter and bits."""
    letter, bits = (TYPES.findall(op) or [("b", "32")])[0]
    return letter, int(bits)


def _shift(bits: int, letter: str, is_left: bool) -> Callable[[Ints, Ints], Ints]:
    """Return the shift of a type."""

    def run(a: Ints, n: Ints) -> Ints:
        n = as_unsigned(n, 32)
        within = np.minimum(n, 63)
        if is_left:
            return np.where(n >= bits, 0, wrap(a << within, bits))
        if letter == "s":
            return a >> within
        if bits == 64:
            return np.where(n == 0, a, (a >> within) & ~(np.int64(-1) << np.minimum(64 - within, 63)))
        return np.where(n >= bits, 0, wrap(as_unsigned(a, bits) >> within, bits))

    return run


def _make_division(bits: int, letter: str, remainder: bool) -> Callable[[Ints, Ints], Ints]:
    """Return the division or remainder of a type."""

    def run(a: Ints, b: Ints) -> Ints:
        if letter != "s":
            a, b = as_unsigned(a, bits), as_unsigned(b, bits)
        safe = np.where(b == 0, 1, b)
        quotient = np.sign(a) * np.sign(safe) * (np.abs(a) // np.abs(safe))
        return wrap(a - quotient * safe if remainder else quotient, bits)

    return run


def _high(bits: int, letter: str) -> Callable[[Ints, Ints], Ints]:
    """Return the high half of the product of a type."""

    def run(a: Ints, b: Ints) -> Ints:
        if letter != "s":
            a, b = as_unsigned(a, bits), as_unsigned(b, bits)
        if bits > 32:
            product = a.astype(object) * b.astype(object)
            return np.asarray(
                np.vectorize(lambda p: ((int(p) >> 64) + (1 << 63)) % (1 << 64) - (1 << 63), otypes=[object])(product), dtype=np.int64
            )
        if letter == "s":
            return wrap((a * b) >> bits, bits)
        return wrap(((a * b).view(np.uint64) >> np.uint64(bits)).view(np.int64), bits)

    return run


def compare(op: str, a: Number, b: Number) -> Number:
    """Compare integers as setp does; other comparisons are unknown."""
    letter, bits = width(op)
    comparison = COMPARISONS.get(op.split(".")[1])
    if comparison is None or letter == "f":
        return UNKNOWN_NUMBER
    if letter == "u" or op.split(".")[1] in ("lo", "ls", "hi", "hs"):
        return apply(lambda x, y: comparison(as_unsigned(x, bits), as_unsigned(y, bits)), a, b)
    return apply(comparison, a, b)


def compute(op: str, operands: Sequence[Number]) -> Number:
    """Return the result of an instruction without memory, threads or control; unknown if not modelled."""
    name = op.split(".")[0]
    letter, bits = width(op)
    if ".pred" in op:
        letter, bits = "u", 8
    if letter == "f" or ".f16" in op or ".bf16" in op:
        return operands[0] if name == "mov" and operands else UNKNOWN_NUMBER
    signed = letter

    def apply_wrapped(function: Callable[..., Ints], out: int = bits) -> Number:
        """Apply a function and wrap its result."""
        return apply(lambda *x: wrap(np.asarray(function(*x), np.int64), out), *operands)

    wide, high = ".wide" in op, ".hi" in op
    operand = (lambda x: x) if signed == "s" else (lambda x: as_unsigned(x, bits))
    match name, len(operands):
        case ("mov", 1) | ("cvta", 1) | ("mapa", 2):
            return operands[0]
        case "cvt", 1:
            kinds = TYPES.findall(op)
            if len(kinds) != 2 or "f" in (kinds[0][0], kinds[1][0]):
                return UNKNOWN_NUMBER
            to, source = (int(b) for _, b in kinds)
            take = (lambda x: wrap(x, source)) if kinds[1][0] == "s" else (lambda x: as_unsigned(x, source))
            return apply(lambda x: wrap(take(x), to), *operands)
        case "add", 2:
            return apply_wrapped(lambda a, b: a + b)
        case "sub", 2:
            return apply_wrapped(lambda a, b: a - b)
        case "mul" | "mul24", 2:
            if wide:
                return apply(lambda a, b: operand(a) * operand(b), *operands)
            return apply(_high(bits, signed), *operands) if high else apply_wrapped(lambda a, b: a * b)
        case "mad" | "mad24", 3:
            if wide:
                return apply(lambda a, b, c: operand(a) * operand(b) + c, *operands)
            if high:
                return apply(lambda p, c: wrap(p + c, bits), apply(_high(bits, signed), *operands[:2]), operands[2])
            return apply_wrapped(lambda a, b, c: a * b + c)
        case ("div", 2) | ("rem", 2):
            return apply(_make_division(bits, signed, name == "rem"), *operands)
        case ("shl", 2) | ("shr", 2):
            return apply(_shift(bits, signed, name == "shl"), *operands)
        case "and", 2:
            return apply_wrapped(lambda a, b: a & b)
        case "or", 2:
            return apply_wrapped(lambda a, b: a | b)
        case "xor", 2:
            return apply_wrapped(lambda a, b: a ^ b)
        case "not", 1:
            return apply(lambda a: a == 0, *operands) if ".pred" in op else apply_wrapped(lambda a: ~a)
        case "neg", 1:
            return apply_wrapped(lambda a: -a)
        case "abs", 1:
            return apply_wrapped(np.abs)
        case "min", 2:
            return apply_wrapped(lambda a, b: np.minimum(operand(a), operand(b)))
        case "max", 2:
            return apply_wrapped(lambda a, b: np.maximum(operand(a), operand(b)))
        case "bfe", 3:
            return apply_wrapped(lambda a, p, n: _field(a, p, n, bits, signed))
        case "bfi", 4:
            return apply_wrapped(_insert_bits)
        case "shf", 3:
            return UNKNOWN_NUMBER
        case "lop3", 4:
            return apply_wrapped(_lop3)
        case "popc", 1:
            return apply(
                lambda a: np.array([bin(int(x)).count("1") for x in as_unsigned(a, 32).ravel()], np.int64).reshape(a.shape), *operands
            )
        case "selp", 3:
            return choose(operands[2], operands[0], operands[1])
    return UNKNOWN_NUMBER


def _field(a: Ints, p: Ints, n: Ints, bits: int, letter: str) -> Ints:
    """Extract bits (bfe)."""
    p, n = p & 0xFF, np.minimum(n & 0xFF, 62)
    low = (as_unsigned(a, bits) >> np.minimum(p, 63)) & ((np.int64(1) << n) - 1)
    return np.where((letter == "s") & (n > 0) & ((low >> np.maximum(n - 1, 0)) & 1 == 1), low - (np.int64(1) << n), low)


def _insert_bits(a: Ints, b: Ints, p: Ints, n: Ints) -> Ints:
    """Insert bits (bfi)."""
    mask = ((np.int64(1) << np.minimum(n & 0xFF, 62)) - 1) << np.minimum(p & 0xFF, 63)
    return (b & ~mask) | ((a << np.minimum(p & 0xFF, 63)) & mask)


def _lop3(a: Ints, b: Ints, c: Ints, table: Ints) -> Ints:
    """Combine three operands by a truth table (lop3)."""
    out = np.zeros(np.broadcast_shapes(a.shape, b.shape, c.shape), np.int64)
    for i in range(8):
        term = (a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c)
        out = out | np.where(table >> i & 1, term, 0)
    return out
