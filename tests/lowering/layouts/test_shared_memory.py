"""Arrays in shared memory: swizzles of the copy engine, descriptors of wgmma, ldmatrix and stmatrix as they are printed, banks."""

from __future__ import annotations

import re
import subprocess
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuir.checking.checked import SharedAlloc
from cuir.checking.checker import check
from cuir.lowering import lower
from cuir.lowering.cuda.prelude import COMMON, read_parts
from cuir.lowering.layouts.layouts import Layout, fragment_map, repeat
from cuir.lowering.layouts.linear_maps import read_map
from cuir.lowering.layouts.shared_memory import (
    SWIZZLES,
    Access,
    count_wavefronts,
    find_access,
    find_block_access,
    lay_out_array,
    swap_odd_rows,
    swizzle_address,
)
from cuir.lowering.layouts.tile_layouts import CHUNKS, EIGHTS, FOURS, FULL, TileLayout
from cuir.lowering.targets import sm75, sm80, sm90
from cuir.lowering.targets.sm90.warpgroup_products import SBO, Operand
from cuir.syntax.parser import parse
from cuir.syntax.types import BF16, DTYPES, F16
from tests.lowering.host import GXX


def alloc(rows: int, cols: int, dtype=F16) -> SharedAlloc:
    return SharedAlloc("s", dtype, (2, rows, cols), 0, None, None)  # type: ignore[arg-type]


def byte_of(array: Layout, row: int, column: int, itemsize: int) -> int:
    return array.find(row=row, column=column)[0] * itemsize


@given(st.sampled_from(SWIZZLES), st.sampled_from([1, 2, 4]), st.sampled_from([8, 64, 80, 192]), st.integers(1, 4))
def test_elements_lie_where_the_copy_engine_puts_them(swizzle: int, itemsize: int, rows: int, panels: int) -> None:
    """PTX ISA: panels one behind another, in each CU_TENSOR_MAP_SWIZZLE_128B (64B, 32B) of the address."""
    width = (swizzle or 64) // itemsize
    array, mask = lay_out_array(rows, panels * width, itemsize, swizzle), {0: 0, 32: 1, 64: 3, 128: 7}[swizzle]
    assert array.is_bijective and (array.count, array.extent("row"), array.extent("column")) == (
        rows * panels * width,
        rows,
        panels * width,
    )
    for row, column in product(range(0, rows, 3), range(0, panels * width, 5)):
        panel, within = divmod(column * itemsize, swizzle or panels * width * itemsize)
        plain = (panel * rows + row) * (swizzle or panels * width * itemsize) + within
        assert byte_of(array, row, column, itemsize) == plain ^ (plain >> 7 & mask) << 4


@given(st.sampled_from(SWIZZLES), st.integers(0, 1 << 16), st.integers(0, 1 << 16))
def test_a_swizzle_is_linear_and_its_own_inverse(swizzle: int, a: int, b: int) -> None:
    once = swizzle_address(a, swizzle)
    assert swizzle_address(once, swizzle) == a and swizzle_address(a ^ b, swizzle) == once ^ swizzle_address(b, swizzle)


@pytest.mark.parametrize(("rows", "columns"), [(64, 96), (20, 64)])
def test_parts_of_panels_are_no_array(rows: int, columns: int) -> None:
    with pytest.raises(ValueError, match="no whole panels"):
        lay_out_array(rows, columns, 2)


# ---- descriptors
@pytest.mark.parametrize("dtype", [F16, BF16])
@pytest.mark.parametrize(("rows", "cols"), [(64, 64), (128, 128), (80, 128), (192, 64)])
def test_k_major_operands_address_what_the_product_reads(rows: int, cols: int, dtype) -> None:
    """Element (r, k) of the k-th slice: start + r / 8 * SBO + r % 8 * 128 + 2 k, then the swizzle of the absolute address."""
    operand, array = Operand(alloc(rows, cols, dtype), k_major=True), lay_out_array(rows, cols, 2)
    for step in range(cols // 16):
        for r, k in product(range(0, rows, 5), range(16)):
            slab, within = divmod(r, 64)
            start = 16 * (operand.step(step) + operand.slab(slab))
            address = swizzle_address(start + within // 8 * SBO + within % 8 * 128 + 2 * k, 128)
            assert address == byte_of(array, r, 16 * step + k, 2)


@pytest.mark.parametrize(("rows", "cols"), [(64, 64), (128, 128), (80, 192)])
def test_mn_major_operands_address_what_the_product_reads(rows: int, cols: int) -> None:
    """Element (m, k): m % 64 contiguous, panels of 64 the leading offset apart, 8 rows of k the stride offset apart."""
    operand, array = Operand(alloc(rows, cols), k_major=False), lay_out_array(rows, cols, 2)
    for step in range(rows // 16):
        for m, k in product(range(0, cols, 3), range(16)):
            panel, within = divmod(m, 64)
            start = 16 * operand.step(step)
            by_leading = swizzle_address(start + panel * operand.leading + k // 8 * SBO + k % 8 * 128 + 2 * within, 128)
            by_slab = swizzle_address(start + 16 * operand.slab(panel) + k // 8 * SBO + k % 8 * 128 + 2 * within, 128)
            assert by_leading == by_slab == byte_of(array, 16 * step + k, m, 2)


# ---- ldmatrix and stmatrix as the printers emit them
KERNEL = """
@kernel(arch="sm_90a")
def k(Y: Global[f16, {rows}, {columns}]):
    s, d = shared(f16, [{rows}, {columns}]), shared(f16, [{rows}, {columns}])
    with role("all", warpgroups=1):
        store(d, load(s))
"""
HARNESS = """
#include <cstdint>
#include <cstdio>
#define DEV static inline
namespace cuir {
%s
static int warp_now, lane_now;
static void say(const char* what, uint32_t at, uint32_t register_) { std::printf("%%s %%d %%d %%u %%u\\n", what, warp_now, lane_now, at, register_); }
static void load_matrix(uint32_t from, uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d) { say("load", from, a); }
%s
}
int main() {
  for (int warp = 0; warp < 4; ++warp) for (int lane = 0; lane < 32; ++lane) {
    const uint32_t smem_address = 0;
    cuir::warp_now = warp, cuir::lane_now = lane;
    uint32_t x[%d];
    for (uint32_t i = 0; i < %d; ++i) x[i] = i;
    %s
  }
}
"""


@pytest.mark.skipif(GXX is None, reason="needs g++")
@pytest.mark.parametrize(("rows", "columns"), [(64, 64), (128, 128), (192, 64)])
def test_printed_addresses_of_ldmatrix_and_stmatrix_are_those_of_the_layouts(rows: int, columns: int, tmp_path: Path) -> None:
    """A lane gives the address of a row of a block; the block's numbers go to (or come from) registers that the fragment names."""
    text = lower(check(parse(KERNEL.format(rows=rows, columns=columns)))).source
    body = text[text.index("  const uint32_t from") : text.rindex("}")]
    registers = rows * columns // 256
    name = re.search(r"cuir::load_matrix\(.*?, (\w+)\[p_\]", body)
    assert name
    body = re.sub(rf"\buint32_t {name[1]}\[\d+\];", "", re.sub(rf"\b{name[1]}\[", "x[", body)).replace(f"({name[1]},", "(x,")
    stores = re.sub(r"asm volatile\(\"stmatrix.*?;\n", 'say("store", to, x[i]);\n', "\n".join(_parts("store_matrix", "store_slabs")))
    source, program = tmp_path / "host.cpp", tmp_path / "host"
    addresses = "\n".join([COMMON["at"].text, read_parts(sm75.INCLUDE, "matrices")["beyond"].text]).replace('asm("" : "+r"(first));', "")
    stores = re.sub(r"asm\(\"\" : .*?;", "", stores)
    source.write_text(HARNESS % (addresses, stores, registers, registers, body))
    subprocess.run([str(GXX), "-std=c++17", "-O1", "-w", "-o", program, source], check=True)
    lines = [line.split() for line in subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines()]
    tile, array, block = FULL.of((rows, columns), 128), lay_out_array(rows, columns, 2), Layout(fragment_map("ldmatrix x4"))
    row_of_block = fragment_map("ldmatrix x4 rows")
    assert len(lines) == 2 * 128 * registers // 4
    for what, warp, lane, address, register in ((x[0], *map(int, x[1:])) for x in lines):
        given, offset = row_of_block.at(lane=lane), {"load": 0, "store": rows * columns * 2}[what]
        for byte in (0, 2, 14):
            # who gets the number that lies there: of these the fragment names a register of a lane
            held, to, _ = block.find(row=given["row"], part=given["part"], column=byte // 2)
            place = tile.place(2 * register + held, to, warp)
            assert byte_of(array, place["row"], place["column"], 2) == address - offset + byte


def _parts(*names: str) -> list[str]:
    parts = read_parts(sm90.INCLUDE, "matrix_stores")
    return [parts[name].text for name in names]


# ---- left operands of products
OPERAND = """
@kernel(arch="sm_90a")
def k(Y: Global[f32, 128, 64]):
    s, b = shared({dtype}, [128, {columns}]), shared({right}, [64, {width}])
    with role("all", {workers}=1):
        store(Y[0:128, :], mma(load(s), b[:, 0:{columns}].T{parts}))
"""
OPERAND_HARNESS = """
#include <cstdint>
#include <cstdio>
#define DEV static inline
namespace cuir {
%s
static void load_pairs(uint32_t from, float& a, float& b, float& c, float& d) { a = from, b = from + 4, c = from + 8, d = from + 12; }
static uint32_t load_word(uint32_t from) { return from; }
%s
}
int main() {
  for (int warp = 0; warp < %d; ++warp) for (int lane = 0; lane < 32; ++lane) {
    const uint32_t smem_address = 0;
    const int row = 16 * warp + lane / 4;
    %s x[%d];
    %s
    for (auto y : x) std::printf("%%d %%d %%d\\n", warp, lane, int(y));
  }
}
"""


@pytest.mark.sweep(4)
@pytest.mark.skipif(GXX is None, reason="needs g++")
@pytest.mark.parametrize("workers", ["warps", "warpgroups"])
@pytest.mark.parametrize(
    ("layout", "dtype", "right", "columns"), [(EIGHTS, "f32", "f32", 64), (FOURS, "f16", "f8e4m3", 192), (FOURS, "bf16", "f8e5m2", 64)]
)
def test_printed_loads_of_left_operands_are_those_of_the_layouts(
    layout: TileLayout, dtype: str, right: str, columns: int, workers: str, tmp_path: Path
) -> None:
    """Each register gets the number (or the two halves) that the layout gives it, of the address that is printed."""
    width = -(-columns // 128) * 128 if right != "f32" else columns
    parts = ", parts=2" if right == "f32" else ""
    text = lower(check(parse(OPERAND.format(dtype=dtype, right=right, columns=columns, width=width, workers=workers, parts=parts)))).source
    body = text[text.index("  const uint32_t from", text.index("---- role")) :]
    body = body[: body.index("float v")]
    threads, size = (128, 32)[workers == "warps"], DTYPES[dtype].itemsize
    loads = re.search(r"\b(\w+)\[(?:4 \* )?i_ \+ 0\]", body)
    assert loads
    registers = layout.count((128, columns), threads) * size // 4
    functions = [COMMON["at"].text, read_parts(sm75.INCLUDE, "matrices")["beyond"].text]
    places = [read_parts(sm80.INCLUDE, "products_f32")["places"].text, read_parts(sm90.INCLUDE, "products_8bit")["load_left"].text]
    source, program = tmp_path / "host.cpp", tmp_path / "host"
    written = (re.sub(r"asm\(\"\" : .*?;", "", "\n".join(t)) for t in (functions, places))
    ctype = "float" if size == 4 else "uint32_t"
    body = re.sub(rf"\b{loads[1]}\[", "x[", body)
    source.write_text(OPERAND_HARNESS % (*written, threads // 32, ctype, registers, body))
    subprocess.run([str(GXX), "-std=c++17", "-O1", "-w", "-o", program, source], check=True)
    lines = [
        tuple(map(int, line.split())) for line in subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines()
    ]
    tile, array = layout.of((128, columns), threads), lay_out_array(128, columns, size)
    assert len(lines) == threads * registers
    for at, (warp, lane, address) in enumerate(lines):
        for e in range(4 // size):
            place = tile.place(at % registers * (4 // size) + e, lane, warp)
            assert byte_of(array, place["row"], place["column"], size) == address + e * size


# ---- banks
def test_wavefronts_are_counted_by_words_of_a_bank() -> None:
    assert count_wavefronts([4 * i for i in range(32)], 4) == (1, 1)
    assert count_wavefronts([0] * 32, 4) == (1, 1)  # one word for all
    assert count_wavefronts([128 * i for i in range(32)], 4) == (32, 1)
    assert count_wavefronts([8 * i for i in range(32)], 8) == (2, 2) and count_wavefronts([16 * i for i in range(32)], 16) == (4, 4)
    assert count_wavefronts([2 * i for i in range(32)], 2) == (1, 1)


def test_who_meets_in_banks() -> None:
    """An accumulator of f32 meets twice in pairs, but not if odd rows begin with the other half; chunks of 8-bit numbers do not."""
    floats, tile = lay_out_array(64, 64, 4), FULL.of((64, 64), 128)
    half, all_once = (2,) * 16 + (0,) * 16, (1,) * 32
    assert find_access(tile, floats, 4) == Access(16, 8, 64, 32, half)
    assert find_access(swap_odd_rows(tile), floats, 4) == Access(16, 8, 32, 32, all_once)
    assert swap_odd_rows(tile) == repeat(read_map("register: c0 r3 c3 c4 | lane: c1 c2 r0+c4 r1 r2 | warp: r4 r5"), ("column", 2))
    eights = repeat(read_map("register: c0 r3 c1 c2 | lane: c3 c4 r0 r1 r2 | warp: r4 r5"), ("column", 2))
    assert find_access(eights, floats, 4) == Access(8, 16, 32, 32, all_once)
    chunks = CHUNKS.of((64, 128), 128)
    assert find_access(chunks, lay_out_array(64, 128, 1), 1).conflicts == find_access(chunks, lay_out_array(64, 128, 2), 2).conflicts == 0
    assert find_access(tile, lay_out_array(64, 64, 4, 0), 4).conflicts > 0
    assert find_block_access(tile, lay_out_array(64, 64, 2)) == Access(4, 16, 16, 16, all_once)
    assert find_block_access(tile, lay_out_array(64, 64, 2, 0)).conflicts == 7 * 16  # rows of 128 bytes, in the same banks
