"""Matrices that the lanes of a warp hold together: products of `mma.sync`, and `ldmatrix`, `stmatrix`, `movmatrix`."""

from __future__ import annotations

import functools
import re

import numpy as np

from .float_formats import add_to_f32, add_to_odd, decode, decode_fp8, encode, fma64
from .floats import keep_payload
from .instruction_table import Array, Opcode, UnknownForm

LANES = np.arange(32)
BITS = {"f16": 16, "bf16": 16, "tf32": 32, "f64": 64, "s8": 8, "u8": 8, "e4m3": 8, "e5m2": 8}
SHAPES = {
    "f16": ("m16n8k8", "m16n8k16"),
    "bf16": ("m16n8k8", "m16n8k16"),
    "tf32": ("m16n8k4", "m16n8k8"),
    "f64": ("m8n8k4", "m16n8k4", "m16n8k8", "m16n8k16"),
    **dict.fromkeys(("s8", "u8"), ("m8n8k16", "m16n8k16", "m16n8k32")),
    **dict.fromkeys(("e4m3", "e5m2"), ("m16n8k16", "m16n8k32")),
}


@functools.cache
def find_places(rows: int, columns: int, per_register: int, registers: int, second: bool) -> Array:
    """Return where the elements of A, or of B's transposed, lie among registers, lanes and elements: [rows * columns].

    second: the operand is B, whose columns are rows here.
    """
    register, lane, element = np.meshgrid(np.arange(registers), LANES, np.arange(per_register), indexing="ij")
    halves = 1 if second or rows == 8 else 2
    row = (lane >> 2) + 8 * (register % halves)
    column = (lane & 3) * per_register + element + 4 * per_register * (register // halves)
    places = np.zeros(rows * columns, np.int64)
    places[(row * columns + column).reshape(-1)] = np.arange(register.size)
    return places


@functools.cache
def find_result_places(rows: int) -> Array:
    """Return where the elements of C and D, by register and lane, lie in a matrix of 8 columns."""
    element, lane = np.meshgrid(np.arange(2 * rows // 8), LANES, indexing="ij")
    return (((lane >> 2) + 8 * (element // 2)) * 8 + (lane & 3) * 2 + element % 2).reshape(-1)


@functools.cache
def read_shape(op: Opcode) -> tuple[int, int, int]:
    """Return rows, columns and inner size of a product. Raises UnknownForm for one that is not known."""
    shape = re.fullmatch(r"m(\d+)n(\d+)k(\d+)", op.pick(*(m for m in op.modifiers if re.fullmatch(r"m\d+n\d+k\d+", m))))
    if shape is None or len(op.types) != 4 or shape[0] not in SHAPES.get(op.types[1], ()) or op.types[2] not in BITS:
        raise UnknownForm(f"the shape or types of `{op.text}`")
    op.allow("sync", "aligned", shape[0], "row", "col", "satfinite")
    if not (op.has("row") and op.has("col")):
        raise UnknownForm(f"the layouts of `{op.text}`")
    return int(shape[1]), int(shape[2]), int(shape[3])


def multiply_fragments(op: Opcode, a: list[Array], b: list[Array], c: list[Array]) -> list[Array]:
    """Compute mma.sync: registers of A, B and C, [warps, 32] each, to those of D."""
    read_shape(op)  # raises UnknownForm
    flat = [np.concatenate([r.reshape(1, -1) for r in group]) for group in (a, b, c)]
    return [row.reshape(a[0].shape) for row in multiply_by_several(op, flat[0], flat[1][None], flat[2])]


def multiply_by_several(op: Opcode, a: Array, b: Array, c: Array) -> Array:
    """Compute mma.sync of one A by several B, each with its C: the registers of all D, one product behind the other.

    Products and sums are exact to f64, rounded once to the accumulator's type, but for f64.

    Args:
        a: Registers of A, [registers, threads] of whole warps.
        b: Registers of the Bs, [products, registers, threads].
        c: Registers of the Cs, [products * registers, threads].
    """
    m, _, k = read_shape(op)
    target, first, second, _ = op.types
    count, warps = len(b), a.shape[-1] // 32
    left = decode_registers(a, first)[find_operand(m, k, len(a), warps, _count_elements(first), False)]
    right = decode_registers(b, second)[find_several(k, b.shape[1], (count, warps), _count_elements(second))]
    places = find_results(m, (count, warps))
    if target == "f64":
        return multiply_in_turn(left, right, c, places)
    product = (left @ right).reshape(-1)[places]  # [products * elements of D, threads]
    if target == "f16":
        old = c.view(np.float16).reshape(-1, c.shape[-1], 2).transpose(0, 2, 1).reshape(product.shape)
        rounded = np.asarray(encode(add_to_odd(product, old.astype(np.float64)), "f16")).reshape(-1, 2, c.shape[-1])
        return np.ascontiguousarray(rounded.transpose(0, 2, 1)).view(np.uint32)[..., 0]
    if target == "s32":
        total = product.astype(np.int64) + c.view(np.int32)
        total = np.clip(total, -(2**31), 2**31 - 1) if op.has("satfinite") else total
        return total.astype(np.int32).view(np.uint32)
    return np.asarray(add_to_f32(product, c.view(np.float32).astype(np.float64))).view(c.dtype)


def multiply_in_turn(left: Array, right: Array, c: Array, places: Array) -> Array:
    """Compute mma.sync of f64: a fused product and sum for each step of the inner dim, from the first on.

    Args:
        left: The matrices A [warps, rows, inner].
        right: The matrices B [warps, inner, columns].
        c: Registers of C.
        places: Where the elements of D lie in the matrices [warps, rows, columns].
    """
    fused, total = keep_payload(fma64), c.view(np.float64)
    shape = (len(left), left.shape[1], right.shape[2])
    for i in range(left.shape[2]):
        a, b = (np.broadcast_to(x, shape).reshape(-1)[places] for x in (left[:, :, i, None], right[:, i, None, :]))
        total = fused(a, b, total)
    return total.view(c.dtype)


def _count_elements(name: str) -> int:
    """Return how many elements a register holds."""
    return max(1, 32 // BITS[name])


def decode_registers(registers: Array, name: str) -> Array:
    """Return the elements of registers [..., threads] in f64, in one row: by register, thread, and place in the register."""
    bits = BITS[name]
    flat = np.ascontiguousarray(registers).reshape(-1)
    if bits < 32:
        flat = flat.view({16: np.uint16, 8: np.uint8}[bits])
    if name == "f64":
        return flat.view(np.float64)
    if bits == 8 and name[0] == "e":
        return decode_fp8(flat, name)
    return decode(flat.view({"f16": np.float16, "s8": np.int8}.get(name, flat.dtype)), name)


@functools.cache
def find_operand(rows: int, columns: int, registers: int, warps: int, per_register: int, second: bool) -> Array:
    """Return where the elements [warps, rows, columns] of A, or of B's transposed, lie in the row of `decode_registers`."""
    inner = find_places(rows, columns, per_register, registers, second)
    register, rest = inner // (32 * per_register), inner % (32 * per_register)
    step = 32 * per_register
    return (register * warps * step + rest + np.arange(warps)[:, None] * step).reshape(warps, rows, columns)


@functools.cache
def find_several(k: int, registers: int, counts: tuple[int, int], per_register: int) -> Array:
    """Return where the elements [warps, k, 8 * products] of several B lie in the row of `decode_registers`; counts: products, warps."""
    count, warps = counts
    one = find_operand(8, k, registers, warps, per_register, True)  # [warps, 8, k]
    size = registers * warps * 32 * per_register
    return np.ascontiguousarray(
        (one[:, None] + (np.arange(count) * size)[None, :, None, None]).reshape(warps, 8 * count, k).transpose(0, 2, 1)
    )


@functools.cache
def find_results(rows: int, counts: tuple[int, int]) -> Array:
    """Return where the elements [products * elements of D, threads] lie in products [warps, rows, 8 * products]; counts: products, warps."""
    count, warps = counts
    inner = find_result_places(rows).reshape(-1, 32)
    row, column = inner // 8, inner % 8
    place = row * 8 * count + column
    warp, product = np.arange(warps)[None, None, :, None] * rows * 8 * count, np.arange(count)[:, None, None, None] * 8
    return (place[None, :, None, :] + warp + product).reshape(count * len(inner), warps * 32)


def spread_matrices(rows: Array, transposed: bool) -> list[Array]:
    """Return the registers [warps, 32] of ldmatrix; rows: [warps, matrices, 8, 8] of 16 bits.

    A lane takes a pair of neighbours in a row, so that the lanes of a warp take a matrix in its order.
    """
    words = np.ascontiguousarray(rows.swapaxes(2, 3) if transposed else rows).view(np.uint32).reshape(*rows.shape[:2], 32)
    return [np.ascontiguousarray(words[:, i]) for i in range(words.shape[1])]


def collect_matrices(registers: list[Array], transposed: bool) -> Array:
    """Return the matrices [warps, matrices, 8, 8] that registers [warps, 32] hold, for stmatrix."""
    words = np.stack(registers, 1)
    rows = words.view(np.uint16).reshape(*words.shape[:2], 8, 8)
    return np.ascontiguousarray(rows.swapaxes(2, 3)) if transposed else rows
