"""Integer instructions against Python's integers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from cuir.ptx.isa.instruction_table import DTYPES, compute
from tests.ptx.isa.reference import draw_bits

TYPES = ("u16", "s16", "u32", "s32", "u64", "s64")


def draw(t: str, seed: int, count: int = 200) -> np.ndarray:
    """Random numbers of a type; a third are small or at an end of the range."""
    width = int(t[1:])
    bits = draw_bits(width, count, seed) if width != 32 else draw_bits(64, count, seed).astype(np.uint32)
    edges = np.array([0, 1, 2, 7, (1 << width) - 1, 1 << width - 1, (1 << width - 1) - 1, 31], f"u{width // 8}")
    bits[: count // 3] = np.random.default_rng(seed).choice(edges, count // 3)
    return bits.view(DTYPES[t])


def wrap(value: int, t: str) -> int:
    width = int(t[1:])
    value %= 1 << width
    return value - (1 << width) if t[0] == "s" and value >> width - 1 else value


def truncate(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


BINARY: dict[str, Callable[[int, int, int], int]] = {
    "add": lambda a, b, w: a + b,
    "sub": lambda a, b, w: a - b,
    "mul.lo": lambda a, b, w: a * b,
    "mul.hi": lambda a, b, w: a * b >> w,
    "div": lambda a, b, w: truncate(a, b) if b else -1,
    "rem": lambda a, b, w: a - truncate(a, b) * b if b else -1,
    "min": lambda a, b, w: min(a, b),
    "max": lambda a, b, w: max(a, b),
}


@pytest.mark.parametrize("t", TYPES)
@pytest.mark.parametrize("name", BINARY)
def test_arithmetic_wraps(name: str, t: str) -> None:
    a, b = draw(t, 1), draw(t, 2)
    result = np.asarray(compute(f"{name}.{t}", a, b))
    for x, y, r in zip(a.tolist(), b.tolist(), result.tolist()):
        assert r == wrap(BINARY[name](x, y, int(t[1:])), t), (x, y)


@pytest.mark.parametrize("t", ["u16", "s16", "u32", "s32"])
def test_wide_products_keep_all_bits(t: str) -> None:
    wide = f"{t[0]}{2 * int(t[1:])}"
    a, b, c = draw(t, 1), draw(t, 2), draw(wide, 3)
    for x, y, r in zip(a.tolist(), b.tolist(), np.asarray(compute(f"mul.wide.{t}", a, b)).tolist()):
        assert r == x * y
    for x, y, z, r in zip(a.tolist(), b.tolist(), c.tolist(), np.asarray(compute(f"mad.wide.{t}", a, b, c)).tolist()):
        assert r == wrap(x * y + z, wide)


@pytest.mark.parametrize("t", ["b16", "b32", "b64", "s32", "s64", "u32"])
def test_shifts_beyond_the_width_are_clamped(t: str) -> None:
    width, kind = int(t[1:]), t.replace("b", "u")
    a, n = draw(kind, 1), np.random.default_rng(2).integers(0, 80, 200).astype(np.uint32)
    if t[0] == "b":
        for x, k, r in zip(a.tolist(), n.tolist(), np.asarray(compute(f"shl.{t}", a, n)).tolist()):
            assert r == (x << k) % (1 << width)
    for x, k, r in zip(a.tolist(), n.tolist(), np.asarray(compute(f"shr.{t}", a, n)).tolist()):
        assert r == x >> k


def get_bit(a: int, i: int) -> int:
    return a >> i & 1


@pytest.mark.parametrize("t", ["u32", "s32", "u64", "s64"])
def test_fields_are_extracted_as_the_manual_says(t: str) -> None:
    width = int(t[1:])
    a = draw(t, 1)
    b, c = (np.random.default_rng(s).integers(0, 70, 200).astype(np.uint32) for s in (1, 2))
    for x, start, count, r in zip(a.tolist(), b.tolist(), c.tolist(), np.asarray(compute(f"bfe.{t}", a, b, c)).tolist()):
        sign = 0 if t[0] == "u" or count == 0 else get_bit(x, min(start + count - 1, width - 1))
        bits = [get_bit(x, start + i) if i < count and start + i < width else sign for i in range(width)]
        assert r == wrap(sum(v << i for i, v in enumerate(bits)), t), (x, start, count)


@pytest.mark.parametrize("t", ["b32", "b64"])
def test_fields_are_inserted(t: str) -> None:
    width, kind = int(t[1:]), t.replace("b", "u")
    a, b = draw(kind, 1), draw(kind, 2)
    c, d = (np.random.default_rng(s).integers(0, 70, 200).astype(np.uint32) for s in (1, 2))
    for x, y, start, count, r in zip(a.tolist(), b.tolist(), c.tolist(), d.tolist(), np.asarray(compute(f"bfi.{t}", a, b, c, d)).tolist()):
        bits = [get_bit(x, i - start) if start <= i < start + count else get_bit(y, i) for i in range(width)]
        assert r == sum(v << i for i, v in enumerate(bits))


@pytest.mark.parametrize("t", ["b32", "b64"])
def test_bits_are_counted_and_reversed(t: str) -> None:
    width = int(t[1:])
    a = draw(t.replace("b", "u"), 1)
    for x, zeros, ones, back in zip(a.tolist(), *(np.asarray(compute(f"{n}.{t}", a)).tolist() for n in ("clz", "popc", "brev"))):
        assert zeros == width - x.bit_length() and ones == x.bit_count() and back == int(f"{x:0{width}b}"[::-1], 2)


@pytest.mark.parametrize("t", ["u32", "s32", "u64", "s64"])
def test_the_highest_bit_that_is_no_sign_is_found(t: str) -> None:
    width = int(t[1:])
    a = draw(t, 1)
    for x, r, amount in zip(a.tolist(), *(np.asarray(compute(f"bfind{n}.{t}", a)).tolist() for n in ("", ".shiftamt"))):
        at = (~x if x < 0 else x).bit_length() - 1
        assert (r, amount) == ((at, width - 1 - at) if at >= 0 else (2**32 - 1, 2**32 - 1))


def test_bytes_are_permuted() -> None:
    a, b, c = (draw("u32", s) for s in range(3))
    c[:3] = (0x3210, 0x7654, 0x89AB)
    for x, y, s, r in zip(a.tolist(), b.tolist(), c.tolist(), np.asarray(compute("prmt.b32", a, b, c)).tolist()):
        octets = (y << 32 | x).to_bytes(8, "little")
        chosen = [octets[s >> 4 * i & 7] for i in range(4)]
        expected = [(255 if o >> 7 else 0) if s >> 4 * i & 8 else o for i, o in enumerate(chosen)]
        assert r == int.from_bytes(bytes(expected), "little")
    np.testing.assert_array_equal(compute("prmt.b32.rc8", a, b, np.ones(200, np.uint32)), (a >> 8 & 255) * np.uint32(0x01010101))


@pytest.mark.parametrize("form", ["l.wrap", "r.wrap", "l.clamp", "r.clamp"])
def test_funnel_shifts_take_bits_of_both(form: str) -> None:
    a, b, c = draw("u32", 1), draw("u32", 2), np.random.default_rng(3).integers(0, 70, 200).astype(np.uint32)
    for x, y, n, r in zip(a.tolist(), b.tolist(), c.tolist(), np.asarray(compute(f"shf.{form}.b32", a, b, c)).tolist()):
        n = n & 31 if "wrap" in form else min(n, 32)
        pair = y << 32 | x
        assert r == ((pair << n >> 32) if form[0] == "l" else pair >> n) % (1 << 32)


def test_carries_link_sums_and_differences() -> None:
    a, b = draw("u64", 1), draw("u64", 2)
    (la, ha), (lb, hb) = ((x.astype(np.uint32), (x >> np.uint64(32)).astype(np.uint32)) for x in (a, b))
    for name, expected in (("add", a + b), ("sub", a - b)):
        low, carry = compute(f"{name}.cc.u32", la, lb)
        high = np.asarray(compute_with_carry(f"{name}c.u32", ha, hb, carry))
        np.testing.assert_array_equal(low.astype(np.uint64) | high.astype(np.uint64) << np.uint64(32), expected)


def compute_with_carry(text: str, *operands: np.ndarray) -> np.ndarray:
    from cuir.ptx.isa.instruction_table import find_meaning, split_opcode

    result = find_meaning(split_opcode(text)).compute(*operands)
    return result[0] if isinstance(result, tuple) else result


@pytest.mark.parametrize("form", ["u32.u32", "s32.u32", "u32.s32", "s32.s32"])
def test_products_of_bytes_are_summed(form: str) -> None:
    a, b, c = draw("u32", 1), draw("u32", 2), draw("s32" if "s32" in form else "u32", 3)
    first, second = form.split(".")
    x = a.view(np.int8 if first == "s32" else np.uint8).reshape(-1, 4).astype(int)
    y = b.view(np.int8 if second == "s32" else np.uint8).reshape(-1, 4).astype(int)
    expected = [wrap(int(v), "s32" if "s32" in form else "u32") for v in (x * y).sum(1) + c.astype(int)]
    assert np.asarray(compute(f"dp4a.{form}", a, b, c)).tolist() == expected


def test_distances_and_24_bit_products() -> None:
    a, b, c = draw("s32", 1), draw("s32", 2), draw("s32", 3)
    assert np.asarray(compute("sad.s32", a, b, c)).tolist() == [
        wrap(abs(x - y) + z, "s32") for x, y, z in zip(a.tolist(), b.tolist(), c.tolist())
    ]
    low = [((x & 0xFFFFFF) * (y & 0xFFFFFF)) % (1 << 32) for x, y in zip(a.view("u4").tolist(), b.view("u4").tolist())]
    assert np.asarray(compute("mul24.lo.u32", a.view("u4"), b.view("u4"))).tolist() == low
