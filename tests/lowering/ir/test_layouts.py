"""Layouts against models made of the definitions in the PTX ISA: accumulator fragments, the 128-byte swizzle, wgmma descriptors."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuir.checking.checked import SharedAlloc
from cuir.lowering.ir.layouts import Fragment
from cuir.lowering.targets.sm90.operands import SBO, SWIZZLE_ROWS, Operand
from cuir.syntax.types import BF16, F16, PANEL_BYTES


def alloc(rows: int, cols: int, dtype=F16) -> SharedAlloc:
    return SharedAlloc("s", dtype, (2, rows, cols), 0, None, None)  # type: ignore[arg-type]


def swizzle(row: int, byte: int, rows: int) -> int:
    """Offset in a panelled array of `rows` rows a stage: panels of rows x 128 bytes, chunks of 16 bytes permuted by row % 8."""
    panel, within = divmod(byte, PANEL_BYTES)
    chunk, rest = divmod(within, 16)
    return panel * rows * PANEL_BYTES + row * PANEL_BYTES + ((chunk ^ row % SWIZZLE_ROWS) << 4) + rest


def swizzle_of_hardware(address: int) -> int:
    """CU_TENSOR_MAP_SWIZZLE_128B, and layout type 1 of a descriptor: bits 4-6 of an address are xored with bits 7-9."""
    return address ^ ((address >> 7 & 7) << 4)


@pytest.mark.parametrize(
    ("rows", "cols", "threads"), [(64, 64, 128), (64, 8, 128), (128, 24, 128), (192, 16, 128), (16, 64, 32), (48, 8, 32)]
)
def test_a_fragment_covers_its_tile_once_and_matches_the_accumulator(rows: int, cols: int, threads: int) -> None:
    f = Fragment(rows, cols, threads)
    observed = {f.element(t, i): (t, i) for t in range(threads) for i in range(f.count)}
    assert len(observed) == threads * f.count == rows * cols
    assert set(observed) == set(product(range(rows), range(cols)))
    for (r, c), (t, i) in observed.items():
        # PTX ISA, m64nNk16 matrix D and m16n8k16 accumulator: rows of a warp, of a quad, of a thread
        within = r % f.slab
        assert t == within // 16 * 32 + within % 8 * 4 + c % 8 // 2
        assert i % 2 == c % 2 and i // 2 % 2 == within % 16 // 8
        assert f.row_offset(2 * (r // f.slab) + i // 2 % 2) == r - (t // 32 * 16 + t % 32 // 4)


def test_an_accumulator_repacks_to_an_operand_in_place() -> None:
    """Elements 8 k .. 8 k + 7 of a thread are its part of the k-th 64 x 16 slice, in the order of matrix A's four registers."""
    f = Fragment(64, 64, 128)
    for t, k, register, e in product(range(128), range(4), range(4), range(2)):
        row, col = f.element(t, 8 * k + 2 * register + e)
        lane = t % 32
        assert row == t // 32 * 16 + lane // 4 + 8 * (register % 2)  # PTX ISA, m64k16 matrix A
        assert col == 16 * k + lane % 4 * 2 + 8 * (register // 2) + e


@given(st.sampled_from([8, 64, 80, 128, 192]), st.integers(1, 4))
def test_the_swizzle_is_that_of_the_copy_engine(rows: int, panels: int) -> None:
    observed = set()
    for row in range(0, rows, 3):
        for byte in range(0, panels * 128, 2):
            place = swizzle(row, byte, rows)
            assert place == swizzle_of_hardware(byte // 128 * rows * 128 + row * 128 + byte % 128)
            observed.add(place)
    assert len(observed) == len(range(0, rows, 3)) * panels * 64 and max(observed) < rows * panels * 128


@pytest.mark.parametrize("dtype", [F16, BF16])
@pytest.mark.parametrize(("rows", "cols"), [(64, 64), (128, 128), (80, 128), (192, 64)])
def test_k_major_operands_address_what_the_product_reads(rows: int, cols: int, dtype) -> None:
    """Element (r, k) of the k-th slice: start + r / 8 * SBO + r % 8 * 128 + 2 k, then the swizzle of the absolute address."""
    operand = Operand(alloc(rows, cols, dtype), k_major=True)
    for step in range(cols // 16):
        for r, k in product(range(0, rows, 5), range(16)):
            slab, within = divmod(r, 64)
            start = 16 * (operand.step(step) + operand.slab(slab))
            address = swizzle_of_hardware(start + within // 8 * SBO + within % 8 * 128 + 2 * k)
            assert address == swizzle(r, 2 * (16 * step + k), rows)


@pytest.mark.parametrize(("rows", "cols"), [(64, 64), (128, 128), (80, 192)])
def test_mn_major_operands_address_what_the_product_reads(rows: int, cols: int) -> None:
    """Element (m, k): m % 64 contiguous, panels of 64 the leading offset apart, 8 rows of k the stride offset apart."""
    operand = Operand(alloc(rows, cols), k_major=False)
    for step in range(rows // 16):
        for m, k in product(range(0, cols, 3), range(16)):
            panel, within = divmod(m, 64)
            start = 16 * operand.step(step)
            by_leading = swizzle_of_hardware(start + panel * operand.leading + k // 8 * SBO + k % 8 * 128 + 2 * within)
            by_slab = swizzle_of_hardware(start + 16 * operand.slab(panel) + k // 8 * SBO + k % 8 * 128 + 2 * within)
            assert by_leading == by_slab == swizzle(16 * step + k, 2 * m, rows)
