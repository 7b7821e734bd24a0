"""Integer instructions: arithmetic, shifts, bit fields, permutations, products of bytes."""

from __future__ import annotations

import numpy as np

from .float_formats import is_float
from .floats import make_float_product, make_float_quotient, make_float_sum
from .instruction_table import DTYPES, Array, Meaning, Opcode, get_width, instruction

WIDE = {"s16": "s32", "u16": "u32", "s32": "s64", "u32": "u64"}
U32, U64, I64 = np.uint32, np.uint64, np.int64


def unsigned(a: Array) -> Array:
    """Return the bits as an unsigned integer."""
    return a.view(f"u{a.dtype.itemsize}") if a.dtype.kind != "u" else a


def high_product(a: Array, b: Array) -> Array:
    """Return the upper half of a product."""
    if a.dtype.itemsize < 8:
        wide = np.dtype(f"{a.dtype.kind}{2 * a.dtype.itemsize}")
        return (a.astype(wide) * b.astype(wide) >> 8 * a.dtype.itemsize).astype(a.dtype)
    x, y, mask = unsigned(a), unsigned(b), U64(0xFFFFFFFF)
    x0, x1, y0, y1 = x & mask, x >> U64(32), y & mask, y >> U64(32)
    low, middle, other = x0 * y0, x1 * y0, x0 * y1
    carry = ((low >> U64(32)) + (middle & mask) + (other & mask)) >> U64(32)
    high = x1 * y1 + (middle >> U64(32)) + (other >> U64(32)) + carry
    if a.dtype.kind == "i":
        high = high - np.where(a < 0, y, U64(0)) - np.where(b < 0, x, U64(0))
    return high.view(a.dtype)


def saturate_sum(total: Array) -> Array:
    """Clamp a 64-bit sum to s32."""
    return np.clip(total, -(2**31), 2**31 - 1).astype(np.int32)


@instruction("add", "sub", "addc", "subc")
def make_sum(op: Opcode) -> Meaning:
    if is_float(op.type):
        return make_float_sum(op)
    op.allow("cc", "sat")
    t, negative = op.type, op.name.startswith("sub")
    if t.endswith("x2"):
        return Meaning((t,), (t, t), lambda a, b: split_halves(a, b, np.subtract if negative else np.add))
    if op.has("sat"):
        return Meaning((t,), (t, t), lambda a, b: saturate_sum(a.astype(I64) - b if negative else a.astype(I64) + b))
    takes, gives = op.name.endswith("c"), op.has("cc")
    if not takes and not gives:
        return Meaning((t,), (t, t), np.subtract if negative else np.add)

    def with_carry(a: Array, b: Array, carry: Array | bool = False) -> Array | tuple[Array, ...]:
        x, y = unsigned(a), unsigned(b)
        part = x - y if negative else x + y
        result = part - np.asarray(carry).astype(x.dtype) if negative else part + np.asarray(carry).astype(x.dtype)
        out = ((x < y) | (part < result)) if negative else ((part < x) | (result < part))
        return (result.view(a.dtype), out) if gives else result.view(a.dtype)

    return Meaning((t,), (t, t), with_carry, takes, gives)


def split_halves(a: Array, b: Array, function: np.ufunc) -> Array:
    """Compute on both 16-bit halves."""
    return function(a.view(np.uint16), b.view(np.uint16)).view(U32)


@instruction("mul", "mad")
def make_product(op: Opcode) -> Meaning:
    if is_float(op.type):
        return make_float_product(op)
    op.allow("lo", "hi", "wide", "sat", "cc")
    t, adds = op.type, op.name == "mad"
    if op.has("wide"):
        w = WIDE[t]
        wide = DTYPES[w]
        if adds:
            return Meaning((w,), (t, t, w), lambda a, b, c: a.astype(wide) * b.astype(wide) + c)
        return Meaning((w,), (t, t), lambda a, b: a.astype(wide) * b.astype(wide))
    product = high_product if op.has("hi") else np.multiply
    if op.has("sat"):
        return Meaning((t,), (t, t, t), lambda a, b, c: saturate_sum(product(a, b).astype(I64) + c))
    if op.has("cc"):

        def with_carry(a: Array, b: Array, c: Array) -> tuple[Array, ...]:
            x, y = unsigned(product(a, b)), unsigned(c)
            total = x + y
            return total.view(a.dtype), total < x

        return Meaning((t,), (t, t, t), with_carry, False, True)
    if adds:
        return Meaning((t,), (t, t, t), lambda a, b, c: product(a, b) + c)
    return Meaning((t,), (t, t), product)


@instruction("madc")
def make_product_with_carry(op: Opcode) -> Meaning:
    op.allow("lo", "hi", "cc")
    t, product, gives = op.type, high_product if op.has("hi") else np.multiply, op.has("cc")

    def with_carry(a: Array, b: Array, c: Array, carry: Array) -> Array | tuple[Array, ...]:
        x, y = unsigned(product(a, b)), unsigned(c)
        part = x + y
        total = part + carry.astype(x.dtype)
        return (total.view(a.dtype), (part < x) | (total < part)) if gives else total.view(a.dtype)

    return Meaning((t,), (t, t, t), with_carry, True, gives)


@instruction("mul24", "mad24")
def make_product24(op: Opcode) -> Meaning:
    op.allow("lo", "hi")
    t, shift = op.type, 16 if op.has("hi") else 0

    def multiply(a: Array, b: Array) -> Array:
        x, y = (((v.astype(I64) << 40) >> 40) if t[0] == "s" else (v.astype(I64) & 0xFFFFFF) for v in (a, b))
        return (x * y >> shift).astype(DTYPES[t])

    return Meaning((t,), (t, t, t), lambda a, b, c: multiply(a, b) + c) if op.name == "mad24" else Meaning((t,), (t, t), multiply)


def divide(a: Array, b: Array) -> Array:
    """Return the quotient, towards zero; by zero all bits set, as the hardware gives."""
    safe = np.where(b == 0, b.dtype.type(1), b)
    quotient = a // safe
    if a.dtype.kind == "i":
        quotient = quotient + ((quotient < 0) & (quotient * safe != a)).astype(a.dtype)
    return np.where(b == 0, np.array(-1).astype(a.dtype), quotient)


def remainder(a: Array, b: Array) -> Array:
    """Return the remainder, with the sign of the dividend; by zero all bits set, as the hardware gives."""
    safe = np.where(b == 0, b.dtype.type(1), b)
    return np.where(b == 0, np.array(-1).astype(a.dtype), a - divide(a, safe) * safe)


@instruction("rem")
def make_remainder(op: Opcode) -> Meaning:
    op.allow()
    return Meaning((op.type,), (op.type, op.type), remainder)


@instruction("div")
def make_quotient(op: Opcode) -> Meaning:
    if is_float(op.type):
        return make_float_quotient(op)
    op.allow()
    return Meaning((op.type,), (op.type, op.type), divide)


@instruction("sad")
def make_distance(op: Opcode) -> Meaning:
    op.allow()
    t = op.type
    return Meaning((t,), (t, t, t), lambda a, b, c: c + np.where(a < b, b - a, a - b))


@instruction("shl", "shr")
def make_shift(op: Opcode) -> Meaning:
    op.allow()
    t, width, left = op.type, get_width(op.type), op.name == "shl"

    def shift(a: Array, b: Array) -> Array:
        amount = np.minimum(b, U32(width - 1)).astype(a.dtype)
        moved = a << amount if left else a >> amount
        return moved if a.dtype.kind == "i" and not left else np.where(b >= width, a.dtype.type(0), moved)

    return Meaning((t,), (t, "u32"), shift)


@instruction("shf")
def make_funnel_shift(op: Opcode) -> Meaning:
    op.allow("l", "r", "wrap", "clamp")

    def shift(a: Array, b: Array, c: Array) -> Array:
        n = (c & U32(31) if op.has("wrap") else np.minimum(c, U32(32))).astype(U64)
        pair = (b.astype(U64) << U64(32)) | a
        return ((pair << n) >> U64(32) if op.has("l") else pair >> n).astype(U32)

    return Meaning(("b32",), ("b32", "b32", "u32"), shift)


def limit_field(a: Array, width: int) -> Array:
    """Return a position or length of a field: of 32 bits its last byte counts; of 64 all of it does, as an H200 shows."""
    return np.minimum(a & U32(255) if width == 32 else a, U32(width))


@instruction("bfe")
def make_field_extract(op: Opcode) -> Meaning:
    op.allow()
    t, width = op.type, get_width(op.type)

    def extract(a: Array, b: Array, c: Array) -> Array:
        start, count = limit_field(b, width).astype(I64), limit_field(c, width).astype(I64)
        bits = unsigned(a).astype(U64)
        full = np.where(start >= 64, U64(0), bits >> np.minimum(start, 63).astype(U64))
        mask = np.where(count >= 64, ~U64(0), (U64(1) << np.minimum(count, 63).astype(U64)) - U64(1))
        sign_at = np.clip(np.minimum(start + count - 1, width - 1), 0, 63).astype(U64)
        sign = ((bits >> sign_at) & U64(1)) * np.where(count == 0, U64(0), U64(1)) if t[0] == "s" else np.zeros_like(bits)
        available = np.clip(np.minimum(count, width - start), 0, 64)
        kept = np.where(available >= 64, ~U64(0), (U64(1) << np.minimum(available, 63).astype(U64)) - U64(1))
        return np.where(sign == 1, (full & kept & mask) | ~kept, full & mask).astype(f"u{width // 8}").view(DTYPES[t])

    return Meaning((t,), (t, "u32", "u32"), extract)


@instruction("bfi")
def make_field_insert(op: Opcode) -> Meaning:
    op.allow()
    t, width = op.type, get_width(op.type)

    def insert(a: Array, b: Array, c: Array, d: Array) -> Array:
        start, count = limit_field(c, width).astype(U64), limit_field(d, width).astype(U64)
        ones = np.where(count >= 64, ~U64(0), (U64(1) << np.minimum(count, U64(63))) - U64(1))
        mask = np.where(start >= 64, U64(0), ones << np.minimum(start, U64(63)))
        moved = np.where(start >= 64, U64(0), a.astype(U64) << np.minimum(start, U64(63)))
        return ((b.astype(U64) & ~mask) | (moved & mask)).astype(DTYPES[t])

    return Meaning((t,), (t, t, "u32", "u32"), insert)


@instruction("bmsk")
def make_bit_mask(op: Opcode) -> Meaning:
    op.allow("wrap", "clamp")
    wraps = op.has("wrap")

    def make_mask(a: Array, b: Array) -> Array:
        start = (a & U32(31) if wraps else np.minimum(a, U32(32))).astype(U64)
        count = (b & U32(31) if wraps else np.minimum(b, U32(32))).astype(U64)
        return (((U64(1) << count) - U64(1)) << start).astype(U32)

    return Meaning(("b32",), ("u32", "u32"), make_mask)


def reverse_bits(a: Array) -> Array:
    """Return the bits in the other order."""
    octets = np.unpackbits(np.ascontiguousarray(a).view(np.uint8).reshape(*a.shape, a.dtype.itemsize), axis=-1, bitorder="little")
    return np.packbits(octets[..., ::-1], axis=-1, bitorder="little").view(a.dtype).reshape(a.shape)


def count_leading_zeros(a: Array) -> Array:
    """Return the zeros above the highest bit that is set."""
    left, zeros, width = a.copy(), np.zeros(a.shape, U32), 8 * a.dtype.itemsize
    step = width // 2
    while step:
        empty = (left >> a.dtype.type(width - step)) == 0
        zeros += np.where(empty, U32(step), U32(0))
        left = np.where(empty, left << a.dtype.type(step), left)
        step //= 2
    return zeros + np.where(a == 0, U32(1), U32(0))


@instruction("brev")
def make_reversal(op: Opcode) -> Meaning:
    op.allow()
    return Meaning((op.type,), (op.type,), reverse_bits)


@instruction("clz")
def make_leading_zeros(op: Opcode) -> Meaning:
    op.allow()
    return Meaning(("u32",), (op.type,), count_leading_zeros)


@instruction("popc")
def make_population(op: Opcode) -> Meaning:
    op.allow()
    return Meaning(("u32",), (op.type,), lambda a: np.bitwise_count(a).astype(U32))


@instruction("bfind")
def make_find(op: Opcode) -> Meaning:
    op.allow("shiftamt")
    t, width = op.type, get_width(op.type)

    def find(a: Array) -> Array:
        bits = unsigned(np.where(a < 0, ~a, a)) if t[0] == "s" else a
        zeros = count_leading_zeros(bits)
        return np.where(bits == 0, U32(0xFFFFFFFF), zeros if op.has("shiftamt") else U32(width - 1) - zeros)

    return Meaning(("u32",), (t,), find)


@instruction("prmt")
def make_permutation(op: Opcode) -> Meaning:
    op.allow("f4e", "b4e", "rc8", "ecl", "ecr", "rc16")
    mode = op.modifiers[0] if op.modifiers else ""
    fixed = {
        "f4e": [[0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5], [3, 4, 5, 6]],
        "b4e": [[0, 7, 6, 5], [1, 0, 7, 6], [2, 1, 0, 7], [3, 2, 1, 0]],
        "rc8": [[i] * 4 for i in range(4)],
        "ecl": [[0, 1, 2, 3], [1, 1, 2, 3], [2, 2, 2, 3], [3, 3, 3, 3]],
        "ecr": [[0, 0, 0, 0], [0, 1, 1, 1], [0, 1, 2, 2], [0, 1, 2, 3]],
        "rc16": [[0, 1, 0, 1], [2, 3, 2, 3], [0, 1, 0, 1], [2, 3, 2, 3]],
    }.get(mode)

    def permute(a: Array, b: Array, c: Array) -> Array:
        pair = (b.astype(U64) << U64(32)) | a
        shape = np.broadcast(pair, c).shape
        result = np.zeros(shape, U32)
        table = np.array(fixed, U32) if fixed else None
        for i in range(4):
            selector = table[c & U32(3), i] if table is not None else (c >> U32(4 * i)) & U32(15)
            octet = (pair >> ((selector & U32(7)) * U32(8)).astype(U64)).astype(U32) & U32(255)
            octet = np.where(selector & U32(8), np.where(octet & U32(128), U32(255), U32(0)), octet)
            result |= octet << U32(8 * i)
        return result

    return Meaning(("b32",), ("b32", "b32", "b32"), permute)


@instruction("dp4a", "dp2a")
def make_dot(op: Opcode) -> Meaning:
    op.allow("lo", "hi")
    first, second = op.types
    total = "s32" if "s32" in op.types else "u32"

    def parts(v: Array, kind: str, width: int) -> Array:
        return np.ascontiguousarray(v).view(f"{'i' if kind == 's32' else 'u'}{width}").reshape(*v.shape, 4 // width).astype(I64)

    def dot(a: Array, b: Array, c: Array) -> Array:
        a, b = np.broadcast_arrays(a, b)
        y = parts(b, second, 1)
        if op.name == "dp2a":
            x, y = parts(a, first, 2), y[..., 2:] if op.has("hi") else y[..., :2]
        else:
            x = parts(a, first, 1)
        return ((x * y).sum(-1) + c).astype(DTYPES[total])

    return Meaning((total,), (first.replace("s", "b").replace("u", "b"), second.replace("s", "b").replace("u", "b"), total), dot)


@instruction("szext")
def make_extension(op: Opcode) -> Meaning:
    op.allow("wrap", "clamp")
    t = op.type

    def extend(a: Array, b: Array) -> Array:
        count = (b & U32(31) if op.has("wrap") else np.minimum(b, U32(32))).astype(I64)
        mask = (I64(1) << count) - 1
        value = a.astype(I64) & mask
        negative = (value >> np.maximum(count - 1, 0)) & 1 & (count > 0) if t[0] == "s" else np.zeros_like(value)
        return (value | np.where(negative == 1, ~mask, 0)).astype(DTYPES[t])

    return Meaning((t,), (t, "u32"), extend)
