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
def find_places(rows: int, per_register: int, registers: int, second: bool) -> tuple[Array, Array]:
    """Return row and column of each element of A, or of B's transposed: [register, lane, element].

    second: the operand is B, whose rows here are its columns.
    """
    register, lane, element = np.meshgrid(np.arange(registers), LANES, np.arange(per_register), indexing="ij")
    halves = 1 if second or rows == 8 else 2
    row = (lane >> 2) + 8 * (register % halves)
    column = (lane & 3) * per_register + element + 4 * per_register * (register // halves)
    return row, column


@functools.cache
def find_result_places(rows: int) -> tuple[Array, Array]:
    """Return row and column of the elements of C and D: [element, lane]."""
    element, lane = np.meshgrid(np.arange(2 * rows // 8), LANES, indexing="ij")
    return (lane >> 2) + 8 * (element // 2), (lane & 3) * 2 + element % 2


def _unpack(registers: list[Array], name: str) -> Array:
    """Return the numbers of registers [warps, 32] as [register, warps, 32, element] in f64."""
    packed = np.stack(registers)
    bits = BITS[name]
    if name == "f64":
        return packed.view(np.float64)[..., None]
    if name == "tf32":
        return decode(packed, "tf32")[..., None]
    parts = np.ascontiguousarray(packed).view({16: np.uint16, 8: np.uint8}[bits]).reshape(*packed.shape, 32 // bits)
    if name in ("e4m3", "e5m2"):
        return decode_fp8(parts, name)
    return decode(parts.view({"f16": np.float16, "s8": np.int8}.get(name, parts.dtype)), name)


def multiply_fragments(op: Opcode, a: list[Array], b: list[Array], c: list[Array]) -> list[Array]:
    """Compute mma.sync: registers of A, B and C, [warps, 32] each, to those of D.

    Products and sums are exact to f64, rounded once to the accumulator's type.
    """
    shape = re.fullmatch(r"m(\d+)n(\d+)k(\d+)", op.pick(*(m for m in op.modifiers if re.fullmatch(r"m\d+n\d+k\d+", m))))
    if shape is None or len(op.types) != 4 or shape[0] not in SHAPES.get(op.types[1], ()) or op.types[2] not in BITS:
        raise UnknownForm(f"the shape or types of `{op.text}`")
    op.allow("sync", "aligned", shape[0], "row", "col", "satfinite")
    if not (op.has("row") and op.has("col")):
        raise UnknownForm(f"the layouts of `{op.text}`")
    m, n, k = (int(x) for x in shape.groups())
    target, first, second, added = op.types
    warps = a[0].shape[0]
    left, right = np.zeros((warps, m, k)), np.zeros((warps, n, k))
    for registers, name, matrix, is_second in ((a, first, left, False), (b, second, right, True)):
        values = _unpack(registers, name)
        row, column = find_places(m, values.shape[-1], len(registers), is_second)
        matrix[:, row, column] = np.moveaxis(values, 1, 0)
    product = left @ right.transpose(0, 2, 1)
    row, column = find_result_places(m)
    result = np.moveaxis(product[:, row, column], 1, 0)  # [element, warps, 32]
    if target == "s32":
        total = result.astype(np.int64) + np.stack(c).view(np.int32)
        total = np.clip(total, -(2**31), 2**31 - 1) if op.has("satfinite") else total
        return list(total.astype(np.int32).view(np.uint32))
    if target == "f16":
        old = np.stack(c).view(np.float16).reshape(len(c), warps, 32, 2)
        flat = np.moveaxis(old, 3, 1).reshape(2 * len(c), warps, 32)
        rounded = encode(add_to_odd(result, flat.astype(np.float64)), "f16").reshape(len(c), 2, warps, 32)
        return list(np.ascontiguousarray(np.moveaxis(rounded, 1, 3)).view(np.uint32)[..., 0])
    old_typed = np.stack(c).view(np.float64 if added == "f64" else np.float32)
    total = encode(add_to_odd(result, old_typed.astype(np.float64)), target)
    return list(total.view(np.uint64 if target == "f64" else np.uint32))


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
