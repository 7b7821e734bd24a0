"""Matrices that the lanes of a warp hold together: products of `mma.sync`, and `ldmatrix`, `stmatrix`, `movmatrix`."""

from __future__ import annotations

import functools
import re

import numpy as np

from .float_formats import add_to_odd, decode, decode_fp8, encode
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


def unpack_matrix(registers: list[Array], name: str, rows: int, columns: int, second: bool) -> Array:
    """Return the matrices [warps, rows, columns] in f64 that registers [warps, 32] hold."""
    packed = np.concatenate(registers, 1) if len(registers) > 1 else np.ascontiguousarray(registers[0])
    bits = BITS[name]
    per = max(1, 32 // bits)
    if bits < 32:
        packed = packed.view({16: np.uint16, 8: np.uint8}[bits])
    flat = packed[:, find_places(rows, columns, per, len(registers), second)]
    if name == "f64":
        numbers = flat.view(np.float64)
    elif bits == 8 and name[0] == "e":
        numbers = decode_fp8(flat, name)
    else:
        numbers = decode(flat.view({"f16": np.float16, "s8": np.int8}.get(name, flat.dtype)), name)
    return numbers.reshape(-1, rows, columns)


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
    """Compute mma.sync: registers of A, B and C, [warps, 32] each, to those of D.

    Products and sums are exact to f64, rounded once to the accumulator's type.
    """
    m, n, k = read_shape(op)
    target, first, second, added = op.types
    product = unpack_matrix(a, first, m, k, False) @ unpack_matrix(b, second, n, k, True).transpose(0, 2, 1)
    warps = len(product)
    result = product.reshape(warps, m * n)[:, find_result_places(m)]  # [warps, register and lane]
    count = m * n // 32
    if target == "f16":
        old = np.stack(c, 1).view(np.float16).reshape(warps, count // 2, 32, 2)
        flat = np.moveaxis(old, 3, 2).reshape(warps, count * 32)
        rounded = np.asarray(encode(add_to_odd(result, flat.astype(np.float64)), "f16")).reshape(warps, count // 2, 2, 32)
        words = np.ascontiguousarray(np.moveaxis(rounded, 2, 3)).view(np.uint32)[..., 0]
        return [words[:, i] for i in range(count // 2)]
    added_bits = np.concatenate(c, 1)
    if target == "s32":
        total = result.astype(np.int64) + added_bits.view(np.int32)
        total = np.clip(total, -(2**31), 2**31 - 1) if op.has("satfinite") else total
        bits = total.astype(np.int32).view(np.uint32)
    else:
        old_numbers = added_bits.view(np.float64 if added == "f64" else np.float32).astype(np.float64)
        bits = np.asarray(encode(add_to_odd(result, old_numbers), target)).view(added_bits.dtype)
    return [bits[:, i : i + 32] for i in range(0, count * 32, 32)]


def spread_matrices(rows: Array, transposed: bool) -> list[Array]:
    """Return the registers [warps, 32] of ldmatrix; rows: [warps, matrices, 8, 8] of 16 bits."""
    first = 2 * (LANES & 3)
    if transposed:
        low, high = rows[:, :, first, LANES >> 2], rows[:, :, first + 1, LANES >> 2]
    else:
        low, high = rows[:, :, LANES >> 2, first], rows[:, :, LANES >> 2, first + 1]
    words = low.astype(np.uint32) | high.astype(np.uint32) << np.uint32(16)
    return [np.ascontiguousarray(words[:, i]) for i in range(words.shape[1])]


def collect_matrices(registers: list[Array], transposed: bool) -> Array:
    """Return the matrices [warps, matrices, 8, 8] that registers [warps, 32] hold, for stmatrix."""
    words = np.stack(registers, 1)
    rows = np.zeros((*words.shape[:2], 8, 8), np.uint16)
    first = 2 * (LANES & 3)
    for i, half in enumerate((words & np.uint32(0xFFFF), words >> np.uint32(16))):
        if transposed:
            rows[:, :, first + i, LANES >> 2] = half
        else:
            rows[:, :, LANES >> 2, first + i] = half
    return rows
