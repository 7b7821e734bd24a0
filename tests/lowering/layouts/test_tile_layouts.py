"""Layouts of register tiles against models made of the definitions in the PTX ISA, and against what device functions do."""

from __future__ import annotations

import subprocess
from itertools import product
from pathlib import Path

import pytest

from cuir.lowering.cuda.prelude import read_parts
from cuir.lowering.layouts.layouts import LANES
from cuir.lowering.layouts.tile_layouts import (
    BY_LANE,
    CHUNKS,
    COLUMNS,
    DEALT,
    FULL,
    LAYOUTS,
    ONE,
    PARTIAL,
    ROWS,
    WORDS,
    Fragment,
    natural_layout,
)
from cuir.lowering.targets.sm90 import INCLUDE
from cuir.syntax.types import F8E4M3, F16, F32
from tests.lowering.host import GXX

SHAPES = [(64, 64, 128), (64, 8, 128), (128, 24, 128), (192, 16, 128), (16, 64, 32), (48, 8, 32)]


@pytest.mark.parametrize(("rows", "cols", "threads"), SHAPES)
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
        assert i == ((r // f.slab * f.groups + c // 8) * 2 + i // 2 % 2) * 2 + i % 2
        assert f.row_offset(2 * (r // f.slab) + i // 2 % 2) == r - (t // 32 * 16 + t % 32 // 4)


def test_an_accumulator_repacks_to_an_operand_in_place() -> None:
    """Elements 8 k .. 8 k + 7 of a thread are its part of the k-th 64 x 16 slice, in the order of matrix A's four registers."""
    f = Fragment(64, 64, 128)
    for t, k, register, e in product(range(128), range(4), range(4), range(2)):
        row, col = f.element(t, 8 * k + 2 * register + e)
        lane = t % 32
        assert row == t // 32 * 16 + lane // 4 + 8 * (register % 2)  # PTX ISA, m64k16 matrix A
        assert col == 16 * k + lane % 4 * 2 + 8 * (register // 2) + e


@pytest.mark.parametrize(("rows", "cols", "threads"), [*SHAPES, (16, 4, 128)])
def test_rows_and_columns_are_those_of_the_fragment(rows: int, cols: int, threads: int) -> None:
    """Row value r and column value c of a thread are those of element i: r = 2 slab + half, c = 2 group + e."""
    f = Fragment(rows, cols, threads)
    by_row, by_column = (layout.of((rows, cols), threads) for layout in (ROWS, COLUMNS))
    assert (by_row.count, by_column.count, FULL.count((rows, cols), threads)) == (f.row_values, 2 * f.groups, f.count)
    for t in range(0, threads, 5):
        at = (t % LANES, t // LANES)
        for i in range(f.count):
            row, column = f.element(t, i)
            r, c = 2 * (i // (4 * f.groups)) + i // 2 % 2, 2 * (i // 4 % f.groups) + i % 2
            assert by_row.place(r, *at) == {"row": row} and by_column.place(c, *at) == {"column": column}
            assert PARTIAL.of((rows, 1), threads).place(r, *at) == {"row": row, "part": t % 4}


def test_what_a_thread_holds_follows_from_the_layout() -> None:
    names = (
        "varies_by_row",
        "varies_by_column",
        "is_accumulator",
        "is_fragment",
        "is_constant_along_rows",
        "is_per_row",
        "is_per_column",
        "has_accumulator_columns",
    )
    held = {layout.name: {n for n in names if getattr(layout, n)} for layout in LAYOUTS.values()}
    assert held == {
        "full": {"varies_by_row", "varies_by_column", "is_accumulator", "is_fragment", "has_accumulator_columns"},
        "rows": {"varies_by_row", "is_constant_along_rows", "is_per_row"},
        "columns": {"varies_by_column", "is_per_column", "has_accumulator_columns"},
        "one": {"is_constant_along_rows"},
        "partial": {"varies_by_row"},
        "lanes": {"varies_by_column"},
        "chunks": {"varies_by_row", "varies_by_column"},
        **{name: {"varies_by_row", "varies_by_column", "is_fragment"} for name in ("dealt", "fours", "words", "eights")},
    }
    assert [natural_layout(r, c) for r, c in ((1, 1), (64, 1), (1, 64), (64, 64))] == [ONE, ROWS, COLUMNS, FULL]
    assert [x.count_packed(F16) for x in (FULL, CHUNKS, COLUMNS)] == [2, 2, 1] and FULL.count_packed(F32) == 1
    assert WORDS.count_packed(F8E4M3) == 4 and FULL.count_packed(F8E4M3) == 1


def test_layouts_agree_whose_threads_hold_the_same_rows_and_columns() -> None:
    apart = {(a.name, b.name) for a in LAYOUTS.values() for b in LAYOUTS.values() if not a.agrees_with(b)}
    assert all((b, a) in apart for a, b in apart)  # full with rows, columns and one; dealt with rows
    assert {b for a, b in apart if a == "full"} == {"lanes", "chunks", "dealt", "fours", "words", "eights"}
    assert {b for a, b in apart if a == "dealt"} == {"full", "columns", "lanes", "chunks", "fours", "words", "eights"}
    assert not {b for a, b in apart if a == "one"}
    assert not BY_LANE.agrees_with(COLUMNS) and not CHUNKS.agrees_with(ROWS)


@pytest.mark.parametrize(("rows", "columns", "threads"), [(16, 32, 32), (64, 96, 128)])
def test_dealt_columns_are_those_that_lanes_load_for_a_product(rows: int, columns: int, threads: int) -> None:
    """Where an accumulator has column p, there is column p / 16 * 16 + p % 8 * 2 + p % 16 / 8, as `store_dealt` reads them."""
    full, dealt = FULL.of((rows, columns), threads), DEALT.of((rows, columns), threads)
    for at in full.iterate(threads // LANES):
        place = full.place(*at)
        p = place["column"]
        assert dealt.place(*at) == {"row": place["row"], "column": p // 16 * 16 + p % 8 * 2 + p % 16 // 8}


CHUNK_PLACES = """
#include <cstdio>
#define DEV static inline
%s
int main() {
  for (int warp = 0; warp < %d; ++warp) for (int lane = 0; lane < 32; ++lane) for (int i = 0; i < %d; ++i) {
    const Chunk c = chunk_place<%d, %d>(i, warp, lane);
    std::printf("%%d %%d\\n", c.row, c.number);
  }
}
"""


@pytest.mark.skipif(GXX is None, reason="needs g++")
@pytest.mark.parametrize(("rows", "columns", "warps"), [(64, 64, 4), (64, 128, 4), (32, 192, 1), (32, 192, 4)])
def test_chunks_are_those_of_the_device_function(rows: int, columns: int, warps: int, tmp_path: Path) -> None:
    layout = CHUNKS.of((rows, columns), 32 * warps)
    chunks = layout.count // 16
    source, program = tmp_path / "host.cpp", tmp_path / "host"
    source.write_text(CHUNK_PLACES % (read_parts(INCLUDE, "chunks")["chunk_place"].text, warps, chunks, columns, warps))
    subprocess.run([str(GXX), "-std=c++17", "-o", program, source], check=True)
    lines = iter(subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines())
    for warp, lane, i in product(range(warps), range(32), range(chunks)):
        row, number = map(int, next(lines).split())
        for e in (0, 1, 7, 15):
            assert layout.place(16 * i + e, lane, warp) == {"row": row, "column": 16 * number + e}
