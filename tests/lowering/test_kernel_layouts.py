"""Layouts of a kernel: its tiles and moves, and the pictures of who holds an element."""

from __future__ import annotations

from cuir.checking.checker import check
from cuir.lowering.ir.build_ir import build
from cuir.lowering.ir.ops import Kernel
from cuir.lowering.kernel_layouts import collect_moves, collect_tiles, count_copies, describe_layout, draw_banks, draw_layout
from cuir.lowering.layouts.tile_layouts import COLUMNS, FULL, LAYOUTS, ROWS
from cuir.lowering.passes.pipeline import optimise
from cuir.syntax.parser import parse

KERNEL = """
@kernel(arch="sm_90a")
def k(X: Global[f32, M, 64], Y: Global[f32, M, 64], Z: Global[f16, M, 64]):
    s, h = shared(f32, [64, 64]), shared(f16, [64, 64])
    plain = shared(f16, [64, 40])
    with role("all", warpgroups=1):
        x = load(X[0:64, :])
        top = row_max(x)
        y = x * exp2(x - top)
        store(s, y)
        store(h, cast(y, f16))
        store(plain, cast(load(X[0:64, 0:40]), f16))
        sync()
        store(Y[0:64, :], load(s) + y)
        store(Z[0:64, :], load(h))
        store(Z[64:128, 0:40], load(plain))
"""


def kernel() -> Kernel:
    result = build(check(parse(KERNEL)))
    optimise(result)
    return result


def test_tiles_are_listed_by_type_with_their_registers() -> None:
    tiles = {(u.layout, str(u.type.dtype.data), u.type.shape): u for u in collect_tiles(kernel())}
    assert tiles[FULL, "f32", (64, 64)].registers == 32 and "y" in tiles[FULL, "f32", (64, 64)].names
    assert tiles[FULL, "f16", (64, 64)].registers == 16
    assert tiles[ROWS, "f32", (64, 1)].registers == 2 and tiles[ROWS, "f32", (64, 1)].names == ("top",)


def test_moves_say_who_meets_in_banks() -> None:
    moves = {(m.array, m.way): m for m in collect_moves(kernel())}
    assert set(moves) == {("s", "pairs"), ("h", "stmatrix"), ("h", "ldmatrix"), ("plain", "elements")}
    assert {m.swizzle for m in moves.values()} == {0, 128}
    assert moves["s", "pairs"].access.conflicts == moves["h", "ldmatrix"].access.conflicts == 0
    access = moves["plain", "elements"].access  # rows 80 bytes apart: rows 0 and 8 are 640 bytes from each other, 20 banks
    assert access.bytes == 4 and access.wavefronts == access.ideal and draw_banks(access) == "1" * 32
    assert moves["h", "ldmatrix"].access.bytes == 16 and draw_banks(moves["h", "ldmatrix"].access) == "1" * 32


def test_a_picture_names_lane_and_register() -> None:
    lines = list(draw_layout(FULL.of((64, 64), 128)))
    assert lines[0].split() == [*(f"c{i}" for i in range(16)), "..."] and lines[-1] == "..."
    assert lines[1].split()[:9] == ["r0", "0.0", "0.1", "1.0", "1.1", "2.0", "2.1", "3.0", "3.1"]
    assert lines[9].split()[:2] == ["r8", "0.2"] and lines[16].split()[-1] == "31.7"


def test_descriptions_say_bits_and_repeats() -> None:
    assert describe_layout(FULL.of((192, 96), 128)) == (
        "register: c0 r3 c3 c4 | lane: c1 c2 r0 r1 r2 | warp: r4 r5 | repeated 3 times by column, 3 times by row"
    )
    assert describe_layout(FULL.of((16, 16), 32)) == "register: c0 r3 c3 | lane: c1 c2 r0 r1 r2"
    shapes = {"rows": (64, 1), "columns": (1, 64), "one": (1, 1), "partial": (64, 1), "lanes": (1, 64)}
    copies = {name: count_copies(layout.of(shapes.get(name, (64, 64)), 128)) for name, layout in LAYOUTS.items()}
    assert copies == {
        "full": 1,
        "rows": 4,
        "columns": 8,
        "one": 32,
        "partial": 4,
        "lanes": 1,
        "chunks": 1,
        "dealt": 1,
        "fours": 1,
        "words": 1,
        "eights": 1,
    }
    assert [line.split()[1] for line in draw_layout(COLUMNS.of((1, 8), 32))] == ["c1", "0.0"]
