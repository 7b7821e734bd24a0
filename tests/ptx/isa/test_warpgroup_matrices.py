"""Products of warpgroups that nvcc compiles, against PyTorch's: every type, swizzle and order of dims, factors, registers."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
import torch

from cuir.cuda import LoadedModule, load
from cuir.ptx.isa.instruction_table import UnknownForm, split_opcode
from cuir.ptx.isa.warpgroup_matrices import decode_descriptor, read_form

SOURCE = Path(__file__).parent.parent / "product_kernels.cu"
TYPES = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "tf32": torch.float32,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "s8": torch.int8,
}
SWIZZLES = {0: 0, 128: 1, 64: 2, 32: 3}
SECOND = 16384  # byte at which B begins


@functools.cache
def compiled() -> LoadedModule:
    return load(SOURCE, arch="sm_90a")


def find_place(row: int, byte: int, swizzle: int, leading: int, stride: int) -> int:
    """Where a byte of a row lies, rows of 32 bytes that follow the inner dim: the manual's core matrices of 8 rows."""
    if not swizzle:
        return row // 8 * stride + byte // 16 * leading + row % 8 * 16 + byte % 16
    place = row // 8 * stride + row % 8 * swizzle + byte
    return place ^ (place // 128 % (swizzle // 16)) * 16


def find_transposed_place(row: int, k: int, swizzle: int, leading: int, stride: int) -> int:
    """Where a 16-bit element lies whose rows are contiguous: blocks of a swizzle's bytes along the rows, 8 deep along k."""
    byte, width = 2 * row, swizzle or 16
    block, inner = divmod(byte, width)
    if not swizzle:
        return block * stride + k // 8 * leading + k % 8 * 16 + inner
    place = block * leading + k // 8 * stride + k % 8 * width + inner
    return place ^ (place // 128 % (swizzle // 16)) * 16


def draw(name: str, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(shape[0])
    if name == "s8":
        return torch.randint(-128, 128, shape, generator=generator).to(torch.int8)
    values = torch.randn(shape, generator=generator)
    if name == "tf32":  # its last 13 bits are ignored
        return (values.view(torch.int32) & ~0x1FFF).view(torch.float32)
    return values.to(TYPES[name])


def widen(x: torch.Tensor) -> torch.Tensor:
    return x.float().double() if x.dtype != torch.int8 else x.double()


def write(tile: np.ndarray, matrix: torch.Tensor, base: int, swizzle: int, transposed: bool) -> int:
    """Write a matrix [rows, inner] to shared memory; return its descriptor, without the address of that memory."""
    size, rows = matrix.element_size(), len(matrix)
    raw = matrix.view(torch.uint8).numpy().reshape(rows, -1)
    if transposed:
        blocks = -(-2 * rows // (swizzle or 16))
        leading, stride = (8 * swizzle * 2, 8 * swizzle) if swizzle else (128 * blocks, 128)
    else:
        leading, stride = (16, 8 * swizzle) if swizzle else (128, 256)
    for row in range(rows):
        for byte in range(raw.shape[1]):
            if transposed:
                at = find_transposed_place(row, byte // size, swizzle, leading, stride) + byte % size
            else:
                at = find_place(row, byte, swizzle, leading, stride)
            tile[base + at] = raw[row, byte]
    return base >> 4 | (leading >> 4) << 16 | (stride >> 4) << 32 | SWIZZLES[swizzle] << 62


def read_result(words: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The matrix that the registers [128, n] hold, by the manual's formula for each element."""
    out = torch.zeros(64, 32, dtype=torch.float64)
    per = 4 // dtype.itemsize
    values = words.contiguous().view(dtype).double()
    for thread in range(128):
        for i in range(32 // 2):
            row = 16 * (thread // 32) + thread % 32 // 4 + 8 * (i // 2 % 2)
            out[row, 8 * (i // 4) + 2 * (thread % 4) + i % 2] = values[thread, i // per * per + i % per]
    return out


# A kernel, the types of A and B, whether each is transposed, and the sign of the product.
CASES = [
    ("f16", "f16", "f16", False, False, 1),
    ("f16_first", "f16", "f16", True, False, 1),
    ("f16_second", "f16", "f16", False, True, 1),
    ("f16_both", "f16", "f16", True, True, 1),
    ("f16_negated", "f16", "f16", False, False, -1),
    ("bf16", "bf16", "bf16", False, False, 1),
    ("tf32", "tf32", "tf32", False, False, 1),
    ("e4m3", "e4m3", "e4m3", False, False, 1),
    ("e5m2_e4m3", "e5m2", "e4m3", False, False, 1),
    ("s8", "s8", "s8", False, False, 1),
    ("f16_to_f16", "f16", "f16", False, False, 1),
]


@pytest.mark.sweep
@pytest.mark.nvcc
@pytest.mark.parametrize("swizzle", SWIZZLES)
@pytest.mark.parametrize(("kernel", "first", "second", "a_transposed", "b_transposed", "sign"), CASES, ids=[c[0] for c in CASES])
def test_products_of_shared_memory(
    kernel: str, first: str, second: str, a_transposed: bool, b_transposed: bool, sign: int, swizzle: int
) -> None:
    inner = 32 // TYPES[first].itemsize
    a, b = draw(first, 64, inner), draw(second, 32, inner)
    tile = np.zeros(32768, np.uint8)
    da, db = write(tile, a, 0, swizzle, a_transposed), write(tile, b, SECOND, swizzle, b_transposed)
    dtype = torch.int32 if first == "s8" else torch.float16 if kernel == "f16_to_f16" else torch.float32
    count = 8 if dtype == torch.float16 else 16
    old = torch.arange(128 * 16).reshape(128, 16).to(torch.float32) / 64
    old = old.to(dtype) if count == 16 else old.half()
    for adds in (0, 1):
        y = torch.zeros(128, 16, dtype=torch.int32)
        y[:, :count] = old.view(torch.int32)
        before = read_result(y[:, :count], dtype)
        report = compiled()[kernel](1, 128, torch.from_numpy(tile).view(torch.int32), y, da, db, adds)
        expected = sign * (widen(a) @ widen(b).T) + adds * before
        tolerance = 2e-2 if dtype == torch.float16 else 1e-5
        torch.testing.assert_close(read_result(y[:, :count], dtype), expected, rtol=tolerance, atol=tolerance)
        assert not report.findings


@pytest.mark.nvcc
@pytest.mark.parametrize(
    ("kernel", "name", "sign"), [("f16_registers", "f16", -1), ("tf32_registers", "tf32", 1), ("s8_registers", "s8", 1)]
)
def test_products_of_registers(kernel: str, name: str, sign: int) -> None:
    size = TYPES[name].itemsize
    inner, per = 32 // size, 4 // size
    a, b = draw(name, 64, inner), draw(name, 32, inner)
    raw = a.view(torch.uint8).reshape(64, inner, size)
    tile = np.zeros(32768, np.uint8)
    fragments = tile[: 128 * 16].reshape(128, 4, per, size)
    for thread in range(128):
        for r in range(4):
            for e in range(per):
                row = 16 * (thread // 32) + thread % 32 // 4 + 8 * (r % 2)
                fragments[thread, r, e] = raw[row, thread % 4 * per + e + 4 * per * (r // 2)]
    db = write(tile, b, SECOND, 128, False)
    y = torch.zeros(128, 16, dtype=torch.int32)
    report = compiled()[kernel](1, 128, torch.from_numpy(tile).view(torch.int32), y, 0, db, 0)
    result = read_result(y, torch.int32 if name == "s8" else torch.float32)
    torch.testing.assert_close(result, sign * (widen(a) @ widen(b).T), rtol=1e-5, atol=1e-5)
    assert not report.findings


def test_forms_that_are_not_known_are_refused() -> None:
    for form in (
        "m64n32k16.f16.bf16.bf16",
        "m64n12k16.f32.f16.f16",
        "m64n32k32.f32.f16.f16",
        "m64n32k32.f32.e4m3.s8",
        "m64n40k32.s32.s8.s8",
    ):
        with pytest.raises(UnknownForm):
            read_form(split_opcode(f"wgmma.mma_async.sync.aligned.{form}"))
    with pytest.raises(UnknownForm, match="base offset"):
        decode_descriptor(1 << 49)
