"""Accumulators through shared memory, and rows of numbers that bulk copies fill: where each element goes, that lanes meet in no bank, what is printed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

from cuir.checking.checker import check
from cuir.interp import run
from cuir.lowering import lower
from cuir.lowering.cuda.prelude import COMMON
from cuir.lowering.ir.build_ir import build
from cuir.lowering.passes.pipeline import PASSES
from cuir.lowering.validate import random_arguments, validate
from cuir.syntax.parser import parse
from cuir.text.diagnostics import CuirError
from tests.lowering.host import GXX

HARNESS = """
#include <cstdint>
#include <cstdio>
#include <cstring>
#define DEV static inline
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static float2 make_float2(float x, float y) { return {x, y}; }
static char memory[1 << 16];
static uint32_t touched[512]; static int count;
template <class T> DEV T get(uint32_t from) { T x; std::memcpy(&x, memory + from, sizeof x); touched[count++] = from; return x; }
template <class T> DEV void put(uint32_t to, T x) { std::memcpy(memory + to, &x, sizeof x); touched[count++] = to; }
%s
int main() {
  const int ROWS = %d, COLS = %d, SLABS = %d, DEALT = %d, STEP = ROWS / SLABS, N = SLABS * COLS / 2;
  for (int warp = 0; warp < STEP / 16; ++warp) for (int lane = 0; lane < 32; ++lane) {
    const int row = 16 * warp + lane / 4, col = 2 * (lane %% 4);
    float x[N], y[N];
    for (int i = 0; i < N; ++i) {
      const int at = col + 8 * (i %% (COLS / 2) / 4) + i %% 2, column = DEALT ? at / 16 * 16 + at %% 8 * 2 + at %% 16 / 8 : at;
      x[i] = (row + i / (COLS / 2) * STEP + 8 * (i / 2 %% 2)) * 1000 + column;
    }
    count = 0;
    if (DEALT) store_dealt<ROWS, COLS, STEP>(x, 0, row, lane); else store_accumulator<ROWS, COLS, STEP>(x, 0, row, lane);
    for (int i = 0; i < count; ++i) std::printf("store %%d %%d %%d %%u\\n", warp, lane, i, touched[i]);
    count = 0; load_accumulator<ROWS, COLS, STEP>(y, 0, row, lane);
    if (!DEALT && std::memcmp(x, y, sizeof x)) std::printf("differs\\n");
  }
  for (int i = 0; i < ROWS * COLS; ++i) { float x; std::memcpy(&x, memory + 4 * i, 4); std::printf("at %%d %%g\\n", 4 * i, x); }
}
"""
ROW = """
@kernel(arch="sm_90a")
def shifted(X: Global[f32, B, M], Y: Global[f32, B, M, 64]):
    s, full = shared(f32, [2, 1, 64]), mbarrier(1, stages=2)
    work = tiles(B)
    with role("load", warps=1, registers=24):
        i = 0
        for t in work:
            sync()
            for m in range(M // 64):
                full[i % 2].expect(nbytes(s[i % 2]))
                copy_async(X[t, m * 64 : m * 64 + 64], s[i % 2], full[i % 2])
                i += 1
                sync()
    with role("rows", warpgroups=1, registers=240):
        i = 0
        for t in work:
            sync()
            for m in range(M // 64):
                full[i % 2].wait(i // 2 % 2)
                q = m * 64 + rows(64)
                store(Y[t, q, cols(64)], cast(q, f32) + load(s[i % 2]))
                i += 1
                sync()
"""


@pytest.mark.sweep(4)
@pytest.mark.skipif(GXX is None, reason="needs g++")
@pytest.mark.parametrize("dealt", [False, True])
@pytest.mark.parametrize(("rows", "columns", "slabs"), [(64, 64, 1), (64, 32, 1), (16, 128, 1), (32, 128, 2), (96, 32, 6), (128, 64, 2)])
def test_each_element_has_its_place_and_lanes_meet_in_no_bank(rows: int, columns: int, slabs: int, dealt: bool, tmp_path: Path) -> None:
    parts = "\n".join(COMMON[name].text for name in ("accumulator_pairs", "store_accumulator", "store_dealt", "load_accumulator"))
    source, program = tmp_path / "host.cpp", tmp_path / "host"
    source.write_text(HARNESS % (parts, rows, columns, slabs, dealt))
    subprocess.run([str(GXX), "-std=c++17", "-O1", "-Wno-unknown-pragmas", "-o", program, source], check=True)
    lines = [line.split() for line in subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines()]
    assert ["differs"] not in lines
    contents = {int(place): float(value) for description, place, value in (x for x in lines if x[0] == "at")}
    for row in range(rows):
        for col in range(columns):
            panel, byte = divmod(4 * col, 128)
            place = panel * rows * 128 + row * 128 + ((byte // 16 ^ row % 8) * 16 + byte % 16)
            assert contents[place] == row * 1000 + col
    each = 8 if dealt else 16  # lanes that shared memory serves at a time: 128 bytes
    banks: dict[tuple[str, int, str], list[int]] = {}
    for _, warp, lane, at, place in (x for x in lines if x[0] == "store"):
        banks.setdefault((warp, int(lane) // each, at), []).extend(int(place) // 4 % 32 + i for i in range(32 // each))
    assert all(len(set(b)) == len(b) == 32 for b in banks.values())


def test_a_row_is_copied_as_it_is_and_read_in_pairs() -> None:
    lowered = lower(check(parse(ROW)))
    (row,) = lowered.maps
    assert row.sizes == (1, 64) and not row.swizzled and "load_columns<64>" in lowered.source
    loader = lowered.source.split("role load")[1].split("role rows")[0]
    assert "#pragma unroll 1" in loader  # 24 registers hold no copies of a body


def test_a_row_reaches_all_columns() -> None:
    checked = check(parse(ROW))
    array = checked.shared["s"]
    assert not array.panelled and array.offset % 128 == 0
    x, y = torch.randn(3, 128), torch.empty(3, 128, 64)
    run(checked, {"X": x, "Y": y}, grid=2)
    blocks = x.view(3, 2, 1, 64).expand(3, 2, 64, 64).reshape(3, 128, 64)
    assert torch.equal(y, torch.arange(128.0)[:, None] + blocks)


def test_passes_keep_what_rows_give() -> None:
    checked = check(parse(ROW))
    inputs = random_arguments(checked, torch.Generator().manual_seed(0), {"B": 2, "M": 128})
    assert validate(build(checked), PASSES, inputs) is None


@pytest.mark.parametrize(("change", "code"), [(("[2, 1, 64]", "[2, 4, 64]"), "T162"), ((": m * 64 + 64], s", ": m * 64 + 32], s"), "T125")])
def test_what_is_no_row(change: tuple[str, str], code: str) -> None:
    with pytest.raises(CuirError, match=code):
        check(parse(ROW.replace(*change)))


def test_a_row_is_no_longer_than_a_side_of_a_box() -> None:
    with pytest.raises(CuirError, match="T128"):
        check(parse(ROW.replace("[2, 1, 64]", "[2, 1, 512]").replace("m * 64 : m * 64 + 64], s", "m * 512 : m * 512 + 512], s")))
