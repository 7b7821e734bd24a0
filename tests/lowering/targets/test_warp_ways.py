"""Ways of warps: products by mma.sync, loads in the order of their operands, copies by cp.async."""

from __future__ import annotations

import pytest

from cuir.lowering.ir import ops
from cuir.lowering.ir.build_ir import build
from cuir.lowering.ir.ir_walk import every
from cuir.lowering.passes.pipeline import optimise
from cuir.lowering.select.ways import Selection, find_selection
from tests.lowering.tile_ir import program

PROGRAM = """
@kernel(arch="{arch}")
def k(X: Global[{t}, M, {width}], Y: Global[f32, M, 64], L: Global[{t}, M, 2, {width}]):
    s, r = shared({t}, [64, {width}]), shared({right}, [64, {width}])
    with role("all", warps=1):
        {body}
"""


def select(body: str, name: str, *, t: str = "f16", right: str | None = None, arch: str = "sm_80", width: int = 64) -> Selection:
    """The way of the first operation of a name."""
    kernel = build(program(PROGRAM.format(t=t, right=right or t, arch=arch, width=width, body=body.replace("\n", "\n        "))))
    optimise(kernel)
    found = next(find_selection(op) for op in every(kernel) if isinstance(op, ops.Perform) and op.entry.written == name)
    assert found is not None
    return found


@pytest.mark.parametrize(("arch", "way"), [("sm_75", "m16n8k8"), ("sm_80", "m16n8k16, loaded ahead"), ("sm_90a", "m16n8k16")])
def test_halves(arch: str, way: str) -> None:
    selection = select("store(Y[0:64, :], mma(load(s), r.T))", "mma", arch=arch)
    assert (selection.way, selection.because) == (f"mma.sync {way}", "f16 in registers by f16 that lie column by column")
    assert select("store(Y[0:64, :], mma(s, r))", "mma", arch=arch).because == "f16 in shared memory by f16 that lie row by row"


def test_blocks_are_loaded_ahead_where_warps_do_all_products() -> None:
    narrow = select("store(Y[0:64, 0:8], mma(s, r[0:8].T))", "mma")
    assert narrow.rejected == ("mma.sync m16n8k16, loaded ahead: 8 columns are no multiple of 16",)
    hopper = select("store(Y[0:64, :], mma(s, r.T))", "mma", arch="sm_90a")
    assert hopper.rejected == ("mma.sync m16n8k16, loaded ahead: kernels with wgmma leave only small products to single warps",)


def test_bytes() -> None:
    selection = select("store(Y[0:64, :], mma(s, r.T))", "mma", t="f8e4m3", arch="sm_89", width=128)
    assert selection == Selection("mma.sync m16n8k32", "f8e4m3 in shared memory by f8e4m3 that lie column by column")


def test_singles() -> None:
    assert select("store(Y[0:64, :], mma(load(s), r.T, parts=2))", "mma", t="f32").way == "mma.sync of TF32, eights"
    assert select("store(Y[0:64, :], mma(s, r.T, parts=2))", "mma", t="f32").way == "mma.sync of TF32, eights"
    by_rows = select("store(Y[0:64, :], mma(s, r, parts=2))", "mma", t="f32")
    assert by_rows.way == "mma.sync of TF32" and by_rows.rejected == ("mma.sync of TF32, eights: the right operand lies row by row",)
    computed = select("store(Y[0:64, :], mma(load(s) + 1.0, r.T, parts=2))", "mma", t="f32")
    assert computed.rejected == ("mma.sync of TF32, eights: the left operand was not loaded in eights",)


def test_loads_of_singles_round_once_if_all_products_take_one_part() -> None:
    assert select("store(Y[0:64, :], mma(load(s), r.T, parts=1))", "load", t="f32").way == "eights as TF32"
    selection = select("store(Y[0:64, :], mma(load(s), r.T, parts=2))", "load", t="f32")
    assert selection.way == "eights" and selection.rejected == ("eights as TF32: a product takes 2 TF32 parts of each number",)


def test_copies_by_threads() -> None:
    assert select("copy_async(X[0:64, :], s)\ncopy_commit()\ncopy_wait(0)", "copy_async") == Selection(
        "in turns", "16 turns of 4 rows in panels of 128 bytes, of which 16 are written out"
    )
    narrow = select("copy_async(X[0:64, :], s)\ncopy_commit()\ncopy_wait(0)", "copy_async", width=40)
    assert narrow.way == "chunk by chunk" and narrow.rejected == ("in turns: the array's rows are no whole panels of 128 bytes",)
    dims = select("copy_async(L[0:32, 0:2, :], s)\ncopy_commit()\ncopy_wait(0)", "copy_async")
    assert dims.rejected == ("in turns: rows of the box lie along several dims",)


def test_stores_of_halves() -> None:
    body = "x = load(s)\nstore(r[0:64, 0:64], {})"
    assert select(body.format("x"), "store").way == "pairs of halves"
    assert select(body.format("x"), "store", arch="sm_90a").way == "stmatrix"
    assert "a mask selects elements" in select(body.format("x, mask=rows(64) < 3"), "store").because
