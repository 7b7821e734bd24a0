"""Ways of warps: products by mma.sync, loads in the order of their operands, copies by cp.async."""

from __future__ import annotations

import math

import pytest
import torch

import cuir
from cuir.lowering import lower
from cuir.lowering.ir import ops
from cuir.lowering.ir.build_ir import build
from cuir.lowering.ir.ir_walk import every
from cuir.lowering.passes.pipeline import optimise
from cuir.lowering.select.ways import Selection, find_selection
from cuir.text.diagnostics import CuirError
from cuir.verification.ptx_launches import compile_lowered
from cuir.verification.ptx_stage import SCHEDULES
from tests.interp.ops.test_memory import GATHERED
from tests.lowering.tile_ir import program

PROGRAM = """
@kernel(arch="{arch}")
def k(X: Global[{t}, M, {width}], Y: Global[f32, M, 64], L: Global[{t}, M, 2, {width}]):
    s, r = shared({t}, [64, {width}]), shared({right}, [64, {width}])
    with role("all", warps=1):
        {body}
"""

PARTS = """
@kernel(arch="sm_80")
def parts(X: Global[f16, 64, N], Y: Global[f16, 64, N], *, PART: const):
    s = shared(f16, [64, 64])
    with role("all", warpgroups=1):
        for i in range(2):
            copy_async(X[0:64, i * PART : i * PART + PART], s[:, i * PART : i * PART + PART])
        copy_commit()
        copy_wait(0)
        sync()
        store(Y[:, 0 : 2 * PART], load(s[:, 0 : 2 * PART]))
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


def test_rows_are_gathered_by_the_lanes_that_hold_their_indices() -> None:
    body = "copy_async(X[63 - rows(64), cols(64)], s)\ncopy_commit()\ncopy_wait(0)"
    assert select(body, "copy_async") == Selection(
        "rows by lanes", "four lanes hold the indices of a row, and copy its chunks of 16 bytes in turn"
    )
    for wrong, says in (
        (body.replace("cols(64)]", "cols(64) * 2]"), "the columns of gathered rows are no neighbours"),
        (body.replace("63 - rows(64)", "rows(64) + cols(64)"), "the columns of gathered rows are no neighbours"),
        (
            "for i in range(M):\n    " + body.replace("cols(64)]", "i * 4 + cols(64)]").replace("\n", "\n    "),
            "not known to be a multiple of 8",
        ),
    ):
        with pytest.raises(CuirError, match=says) as raised:
            select(wrong, "copy_async")
        assert raised.value.diagnostics[0].code == "L002"


@pytest.mark.sweep(4)
@pytest.mark.nvcc
@pytest.mark.parametrize(("width", "first"), [(192, 64), (24, 16)])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_gathered_rows_run_as_ptx(arch: str, width: int, first: int) -> None:
    checked = cuir.check(cuir.parse(GATHERED.replace("ARCH", arch)), consts={"W": width, "FIRST": first})
    x, i = torch.randn(5, 3, 200).half(), torch.randint(-2, 17, (40,)).int()
    y = torch.full((40, width), math.nan).half()
    compile_lowered(lower(checked)).launch({"X": x, "I": i, "Y": y}, SCHEDULES[0])
    rows = torch.nn.functional.pad(x.flatten(0, 1), (0, 128))[:, first : first + width]
    assert torch.equal(y, torch.where(((i >= 0) & (i < 15))[:, None], rows[i.clamp(0, 14).long()], 0))


@pytest.mark.sweep(4)
@pytest.mark.nvcc
@pytest.mark.parametrize("part", [32, 24])  # in turns, chunk by chunk
def test_copies_to_parts_of_a_panel_run_as_ptx(part: int) -> None:
    checked = cuir.check(cuir.parse(PARTS), consts={"PART": part})
    x, y = torch.randn(64, 2 * part).half(), torch.full((64, 2 * part), math.nan).half()
    compile_lowered(lower(checked)).launch({"X": x, "Y": y}, SCHEDULES[0])
    assert torch.equal(y, x)


def test_stores_of_halves() -> None:
    body = "x = load(s)\nstore(r[0:64, 0:64], {})"
    assert select(body.format("x"), "store").way == "pairs of halves"
    assert select(body.format("x"), "store", arch="sm_90a").way == "stmatrix"
    assert "a mask selects elements" in select(body.format("x, mask=rows(64) < 3"), "store").because
