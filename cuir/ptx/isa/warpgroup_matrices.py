"""Products of `wgmma.mma_async`: their forms, descriptors of matrices in shared memory, and fragments of registers."""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

import numpy as np

from .float_formats import F64, add_before_f32, add_to_odd, decode, decode_fp8, encode
from .instruction_table import Array, Opcode, UnknownForm
from .matrices import BITS
from .tensor_boxes import swizzle_addresses

ROWS, CHUNK = 64, 16  # rows of a product; bytes of a chunk, which no swizzle divides
K_BYTES = 32  # of an operand, along the inner dim
RESULTS = {
    "f16": ("f16", "f32"),
    "bf16": ("f32",),
    "tf32": ("f32",),
    **dict.fromkeys(("e4m3", "e5m2"), ("f16", "f32")),
    **dict.fromkeys(("s8", "u8"), ("s32",)),
}
SWIZZLES = (0, 128, 64, 32)  # by the two highest bits of a descriptor


class Form(NamedTuple):
    """Sizes and types of a product: columns, inner size, and the types of D, A and B."""

    columns: int
    inner: int
    result: str
    first: str
    second: str


class Descriptor(NamedTuple):
    """Matrix in shared memory: address, and byte offsets from one of its blocks to the next."""

    address: int
    leading: int
    stride: int
    swizzle: int


@functools.cache
def read_form(op: Opcode) -> Form:
    """Return what a product multiplies. Raises UnknownForm."""
    shape = re.fullmatch(r"m64n(\d+)k(\d+)", op.pick(*(m for m in op.modifiers if m.startswith("m64n"))))
    if shape is None or len(op.types) != 3:
        raise UnknownForm(f"the shape or types of `{op.text}`")
    op.allow("mma_async", "sync", "aligned", shape[0], "satfinite")
    columns, inner = int(shape[1]), int(shape[2])
    result, first, second = op.types
    same = first == second or {first, second} <= {"e4m3", "e5m2"} or {first, second} <= {"s8", "u8"}
    fits = first in RESULTS and result in RESULTS[first] and same and columns % 8 == 0 and columns <= 256
    fits = fits and (first not in ("s8", "u8") or columns in (8, 24) or columns % 16 == 0)
    if not fits or inner * BITS[first] != 8 * K_BYTES:
        raise UnknownForm(f"the shape or types of `{op.text}`")
    return Form(columns, inner, result, first, second)


def decode_descriptor(value: int) -> Descriptor:
    """Return what a descriptor says. Raises UnknownForm for a base offset."""
    if value >> 49 & 7:
        raise UnknownForm("the base offset of a matrix descriptor")
    return Descriptor((value & 0x3FFF) << 4, (value >> 16 & 0x3FFF) << 4, (value >> 32 & 0x3FFF) << 4, SWIZZLES[value >> 62 & 3])


@functools.lru_cache(4096)  # most kernels use few descriptors, again and again
def find_chunks(d: Descriptor, rows: int, inner: int, transposed: bool) -> Array:
    """Return the addresses of a matrix's chunks.

    As [rows, 2] of an operand whose inner dim is contiguous, as [inner, rows / 8] of one whose rows are (transposed).
    """
    if not transposed:
        row, chunk = np.arange(rows)[:, None], np.arange(K_BYTES // CHUNK)[None]
        pitch = d.swizzle or CHUNK
        offsets = row % 8 * pitch + row // 8 * d.stride + chunk * (CHUNK if d.swizzle else d.leading)
    else:
        k, chunk = np.arange(inner)[:, None], np.arange(rows // 8)[None]
        if d.swizzle:
            across = d.swizzle // CHUNK
            offsets = k % 8 * d.swizzle + k // 8 * d.stride + chunk % across * CHUNK + chunk // across * d.leading
        else:
            offsets = k % 8 * CHUNK + k // 8 * d.leading + chunk * d.stride
    return swizzle_addresses(d.address + offsets, d.swizzle)


def decode_elements(data: Array, name: str) -> Array:
    """Return numbers in f64 of bytes along the last axis."""
    bits = BITS[name]
    flat = np.ascontiguousarray(data).view({8: np.uint8, 16: np.uint16, 32: np.uint32}[bits])
    if name in ("e4m3", "e5m2"):
        return decode_fp8(flat, name)
    return decode(flat.view({"f16": np.float16, "s8": np.int8}.get(name, flat.dtype)), name)


def arrange(chunks: Array, name: str, transposed: bool) -> Array:
    """Return the matrix [rows, inner] that chunks hold: [.., ..] of 16 bytes each, or the bytes along a last axis."""
    numbers = decode_elements(np.ascontiguousarray(chunks).view(np.uint8).reshape(len(chunks), -1), name)
    return numbers.T if transposed else numbers


@functools.cache
def find_result_places(columns: int) -> Array:
    """Return where the elements [columns / 2, 128] of D, by register and thread, lie in a matrix of 64 rows."""
    i, thread = np.meshgrid(np.arange(columns // 2), np.arange(128), indexing="ij")
    row = 16 * (thread >> 5) + (thread & 31) // 4 + 8 * (i // 2 % 2)
    return row * columns + 8 * (i // 4) + 2 * (thread & 3) + i % 2


@functools.cache
def find_operand_places(per_register: int) -> Array:
    """Return where the elements [64, inner] of A lie among registers, threads and elements."""
    r, thread, e = np.meshgrid(np.arange(4), np.arange(128), np.arange(per_register), indexing="ij")
    row = 16 * (thread >> 5) + (thread & 31) // 4 + 8 * (r % 2)
    column = (thread & 3) * per_register + e + 4 * per_register * (r // 2)
    places = np.zeros((ROWS, 8 * per_register), np.int64)
    places[row, column] = np.arange(r.size).reshape(r.shape)
    return places


def gather_operand(registers: list[Array], name: str) -> Array:
    """Return the matrix [64, inner] that four registers of 128 threads hold."""
    per = 32 // BITS[name]
    packed = np.ascontiguousarray(np.stack(registers)).view({1: np.uint32, 2: np.uint16, 4: np.uint8}[per]).reshape(-1)
    return decode_elements(packed[find_operand_places(per)], name)


def add_product(form: Form, product: Array, old: Array | None, saturates: bool) -> Array:
    """Return the matrix D [64, columns]: a product, added to the matrix before and rounded once; f64, or i64 of integers."""
    if form.result == "s32":
        total = product.astype(np.int64) + (0 if old is None else old)
        return np.clip(total, -(2**31), 2**31 - 1) if saturates else total.astype(np.int32).astype(np.int64)
    if form.result == "f16":
        return np.asarray(encode(product if old is None else add_to_odd(product, old), "f16")).astype(F64)
    return (product if old is None else add_before_f32(product, old)).astype(np.float32).astype(F64)


def pack_results(form: Form, matrix: Array) -> Array:
    """Return the registers [registers, 128] that hold a matrix D."""
    flat = matrix.reshape(-1)[find_result_places(form.columns)]
    if form.result == "f16":
        halves = np.asarray(encode(flat, "f16")).reshape(-1, 2, 128).transpose(0, 2, 1)
        return np.ascontiguousarray(halves).view(np.uint32)[..., 0]
    if form.result == "s32":
        return flat.astype(np.int32).view(np.uint32)
    return np.asarray(encode(flat, "f32")).view(np.uint32)


def unpack_results(form: Form, registers: Array) -> Array:
    """Return the matrix D that registers [registers, 128] hold."""
    if form.result == "f16":
        flat = registers.view(np.float16).reshape(-1, 128, 2).transpose(0, 2, 1).reshape(-1, 128).astype(F64)
    else:
        flat = registers.view(np.int32).astype(np.int64) if form.result == "s32" else registers.view(np.float32).astype(F64)
    matrix = np.empty(ROWS * form.columns, flat.dtype)
    matrix[find_result_places(form.columns)] = flat
    return matrix.reshape(ROWS, form.columns)
