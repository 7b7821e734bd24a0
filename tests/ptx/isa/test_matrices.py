"""Products of mma.sync against PyTorch's, with fragments made from the manual's formulas for each element; ldmatrix and back."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cuir.ptx.isa.instruction_table import UnknownForm, split_opcode
from cuir.ptx.isa.matrices import collect_matrices, multiply_fragments, spread_matrices

HALVES = {"f16": torch.float16, "bf16": torch.bfloat16}


def pack(matrix: np.ndarray, registers: int, element: int, rows: int, second: bool) -> list[np.ndarray]:
    """Fragments of a matrix of raw bits, lane by lane: A's rows are group and group + 8; B's columns are the group."""
    per = 4 // element
    result = []
    for r in range(registers):
        words = np.zeros((1, 32), np.uint32)
        for lane in range(32):
            group, thread = lane // 4, lane % 4
            for e in range(per):
                upper = r % 2 if not second and rows == 16 else 0
                block = r // 2 if not second and rows == 16 else r
                along = thread * per + e + block * 4 * per
                value = matrix[along, group] if second else matrix[group + 8 * upper, along]
                words[0, lane] |= np.uint32(int(value) << 8 * element * e)
        result.append(words)
    return result


def unpack_result(registers: list[np.ndarray], rows: int, dtype: type) -> np.ndarray:
    out = np.zeros((rows, 8), dtype)
    for i, values in enumerate(registers):
        for lane in range(32):
            out[lane // 4 + 8 * (i // 2), lane % 4 * 2 + i % 2] = values.view(dtype)[0, lane]
    return out


@pytest.mark.parametrize("k", [8, 16])
@pytest.mark.parametrize("t", HALVES)
def test_halves_are_multiplied_into_f32(t: str, k: int) -> None:
    generator = torch.Generator().manual_seed(k)
    a, b, c = (torch.randn(s, generator=generator) for s in ((16, k), (k, 8), (16, 8)))
    a, b = a.to(HALVES[t]), b.to(HALVES[t])
    raw = [x.view(torch.int16).numpy().view(np.uint16) for x in (a, b)]
    old = [
        np.array([[c[lane // 4 + 8 * (i // 2), lane % 4 * 2 + i % 2] for lane in range(32)]], np.float32).view(np.uint32) for i in range(4)
    ]
    op = split_opcode(f"mma.sync.aligned.m16n8k{k}.row.col.f32.{t}.{t}.f32")
    result = multiply_fragments(op, pack(raw[0], k // 4, 2, 16, False), pack(raw[1], k // 8, 2, 16, True), old)
    np.testing.assert_allclose(unpack_result(result, 16, np.float32), (a.double() @ b.double() + c).numpy(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("shape", "first", "second"), [("m8n8k16", "s8", "u8"), ("m16n8k16", "u8", "s8"), ("m16n8k32", "s8", "s8")])
def test_bytes_are_multiplied_exactly(shape: str, first: str, second: str) -> None:
    rows, k = (16 if shape[:3] == "m16" else 8), int(shape[-2:])
    generator = np.random.default_rng(0)
    a, b = generator.integers(0, 256, (rows, k)).astype(np.uint8), generator.integers(0, 256, (k, 8)).astype(np.uint8)
    old = [np.full((1, 32), 7, np.uint32)] * (rows // 4)
    op = split_opcode(f"mma.sync.aligned.{shape}.row.col.s32.{first}.{second}.s32")
    result = multiply_fragments(op, pack(a, rows * k // 128, 1, rows, False), pack(b, k // 16, 1, rows, True), old)
    x, y = (m.view(np.int8 if t == "s8" else np.uint8).astype(int) for m, t in ((a, first), (b, second)))
    np.testing.assert_array_equal(unpack_result(result, rows, np.int32), x @ y + 7)


@pytest.mark.parametrize(("name", "dtype"), [("e4m3", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2)])
def test_8_bit_floats_are_multiplied(name: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(16, 32, generator=generator).to(dtype), torch.randn(32, 8, generator=generator).to(dtype)
    raw = [x.view(torch.uint8).numpy() for x in (a, b)]
    op = split_opcode(f"mma.sync.aligned.m16n8k32.row.col.f32.{name}.{name}.f32")
    result = multiply_fragments(op, pack(raw[0], 4, 1, 16, False), pack(raw[1], 2, 1, 16, True), [np.zeros((1, 32), np.uint32)] * 4)
    np.testing.assert_allclose(unpack_result(result, 16, np.float32), (a.double() @ b.double()).numpy(), rtol=1e-6)


@pytest.mark.parametrize("k", [4, 8])
def test_tf32_drops_bits_of_its_operands(k: int) -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(16, k, generator=generator), torch.randn(k, 8, generator=generator)
    raw = [x.numpy().view(np.uint32) for x in (a, b)]
    op = split_opcode(f"mma.sync.aligned.m16n8k{k}.row.col.f32.tf32.tf32.f32")
    result = multiply_fragments(
        op, pack(raw[0], k // 2, 4, 16, False), pack(raw[1], k // 4, 4, 16, True), [np.zeros((1, 32), np.uint32)] * 4
    )
    cut = [(x & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64) for x in raw]
    np.testing.assert_allclose(unpack_result(result, 16, np.float32), cut[0] @ cut[1], rtol=1e-6, atol=1e-7)


def test_f16_accumulators_are_rounded() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(16, 16, generator=generator).half(), torch.randn(16, 8, generator=generator).half()
    raw = [x.view(torch.int16).numpy().view(np.uint16) for x in (a, b)]
    op = split_opcode("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16")
    result = multiply_fragments(op, pack(raw[0], 4, 2, 16, False), pack(raw[1], 2, 2, 16, True), [np.zeros((1, 32), np.uint32)] * 2)
    expected = (a.double() @ b.double()).half().numpy()
    for i, words in enumerate(result):
        for lane in range(32):
            pair = words[:, lane].view(np.float16)
            np.testing.assert_array_equal(pair, expected[lane // 4 + 8 * i, lane % 4 * 2 : lane % 4 * 2 + 2])


@pytest.mark.parametrize("transposed", [False, True])
def test_matrices_are_spread_and_collected(transposed: bool) -> None:
    rows = np.arange(2 * 4 * 64, dtype=np.uint16).reshape(2, 4, 8, 8)
    registers = spread_matrices(rows, transposed)
    for lane in (0, 5, 31):
        i, j = (lane // 4, lane % 4 * 2)
        low = rows[1, 2, j, i] if transposed else rows[1, 2, i, j]
        assert registers[2][1, lane] & 0xFFFF == low
    np.testing.assert_array_equal(collect_matrices(registers, transposed), rows)


def test_unknown_shapes_are_refused() -> None:
    with pytest.raises(UnknownForm, match="shape"):
        multiply_fragments(split_opcode("mma.sync.aligned.m16n8k64.row.col.s32.s4.s4.s32"), [], [], [])
