"""Ways of reductions: by the shape of the tile, the warps of a worker, and what is known of NaNs."""

from __future__ import annotations

import pytest

from cuir.lowering.ir.build_ir import build
from cuir.lowering.ir.ir_walk import every
from cuir.lowering.passes.pipeline import optimise
from cuir.lowering.select.ways import find_selection
from tests.lowering.tile_ir import program

PROGRAM = """
@kernel(arch="sm_90a")
def k(X: Global[f32, M, 64], Y: Global[f32, 64, 64]):
    with role("all", {workers}):
        x = load(X[0:{rows}, 0:{columns}])
        store(Y[rows({kept_rows}), cols({kept_columns})], {expression})
"""


@pytest.mark.parametrize(
    ("expression", "shape", "workers", "way"),
    [
        ("row_sum(x)", (64, 64), "warpgroups=1", "sums of four threads"),
        ("row_max(x)", (64, 64), "warpgroups=1", "maxima of four threads, NaNs of either sign"),
        ("row_max(exp2(x))", (64, 64), "warpgroups=1", "maxima of four threads"),
        ("row_max(x)", (64, 1), "warpgroups=1", "copied"),
        ("row_sum(x)", (1, 64), "warps=1", "one row"),
        ("col_sum(x)", (16, 64), "warps=1", "one warp"),
        ("col_max(x)", (64, 64), "warpgroups=1", "four warps"),
        ("col_sum(x)", (1, 64), "warpgroups=1", "copied"),
    ],
)
def test_ways_of_reductions(expression: str, shape: tuple[int, int], workers: str, way: str) -> None:
    along_rows = expression.startswith("row")
    rows, columns = shape
    kept = (rows, 1) if along_rows else (1, columns)
    text = PROGRAM.format(workers=workers, rows=rows, columns=columns, kept_rows=kept[0], kept_columns=kept[1], expression=expression)
    kernel = build(program(text))
    optimise(kernel, {"defer_row_sums"})
    names = {"tile.apply", "tile.give_columns"}
    assert [s.way for op in every(kernel) if op.name in names and (s := find_selection(op)) is not None] == [way]
