"""Numbers whose values decide how they are computed: what is marked, chosen and printed."""

from __future__ import annotations

import pytest

from cuir.lowering.compiler import print_kernel
from cuir.lowering.ir import ops
from cuir.lowering.ir.build_ir import build
from cuir.lowering.ir.ir_walk import every
from cuir.lowering.passes.pipeline import optimise
from cuir.lowering.select.number_ways import FAR, NEAR, PANEL, UNSIGNED, WHOLE
from cuir.lowering.select.ways import NUMBER, find_selection
from tests.lowering.tile_ir import program

PROGRAM = """
@kernel(arch="sm_90a")
def k(X: Global[f16, M, 128], I: Global[i32, M], Z: Global[f32, 64, 64], n: i32, m: i32):
    s = shared(f16, [64, 128])
    with role("all", warpgroups=1):
        {line}
"""


def optimised(line: str) -> ops.Kernel:
    kernel = build(program(PROGRAM.format(line=line)))
    optimise(kernel)
    return kernel


def find_number(kernel: ops.Kernel) -> tuple[str, tuple[str, ...]]:
    """The way of the only operation on numbers that has several, and what is said of the others."""
    (selection,) = (s for op in every(kernel) if (s := find_selection(op, NUMBER)) is not None)
    return selection.way, selection.rejected


@pytest.mark.parametrize(
    ("line", "way", "rejected", "text"),
    [
        ("store(I[0], n // m)", "signed", "unsigned: an operand may be negative", "cuir::floordiv(n, m)"),
        ("store(I[0], n % max(m, 1))", "signed", "unsigned: an operand may be negative", "cuir::floormod("),
        ("store(Z, log2(cast(rows(64) + zeros(i32, [64, 64]), f32)))", WHOLE, "", "cuir::log2_of_whole("),
        ("store(Z, log2(load(Z)))", "of any number", f"{WHOLE}: the argument may have a fraction", "cuir::log2_anywhere("),
    ],
)
def test_a_way_follows_from_the_operands(line: str, way: str, rejected: str, text: str) -> None:
    kernel = optimised(line)
    assert find_number(kernel) == (way, (rejected,) if rejected else ())
    assert text in print_kernel(kernel).source


def test_numbers_of_the_frame_are_selected_too() -> None:
    text = PROGRAM.replace("    s = shared", "    work = tiles(cdiv(M, n * n + 3))\n    s = shared").replace(
        "        {line}\n", "        for t in work:\n            store(I[t], 1)\n"
    )
    kernel = build(program(text))
    optimise(kernel)
    assert find_number(kernel)[0] in (UNSIGNED, "signed")


@pytest.mark.parametrize(("line", "near"), [("store(I[0], 7 - max(0, min(m, 9)))", True), ("store(I[0], n + m)", False)])
def test_sums_that_stay_within_32_bits_are_marked(line: str, near: bool) -> None:
    kernel = optimised(line)
    sums = [op for op in every(kernel) if isinstance(op, ops.Apply) and op.kind.linear]
    assert sums and all((NEAR in op.attributes) == near for op in sums)
    assert ("cuir::add(n, m)" in print_kernel(kernel).source) != near


@pytest.mark.parametrize(("bound", "far"), [("n", False), ("M", True)])
def test_limits_far_from_the_ends_are_not_saturated(bound: str, far: bool) -> None:
    kernel = optimised(f"store(Z, where(cols(64) < {bound}, load(Z), 0.0))")
    (comparison,) = (op for op in every(kernel) if isinstance(op, ops.Apply) and op.kind.compares)
    assert (FAR[1] in comparison.attributes) == far
    assert (f"cuir::fixed({bound} - col)" in print_kernel(kernel).source) == far


@pytest.mark.parametrize(("first", "begins"), [("64 * (n % 2)", True), ("n", False)])
def test_views_that_begin_a_panel_are_marked(first: str, begins: bool) -> None:
    kernel = optimised(f"store(X[0:64, 0:32], load(s[:, {first} : {first} + 32]))")
    views = [op for op in every(kernel) if isinstance(op, ops.At) and isinstance(op.array.owner, ops.Shared)]
    assert [PANEL in op.attributes for op in views] == [begins]
