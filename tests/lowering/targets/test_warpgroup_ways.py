"""Ways of Hopper's instructions: wgmma by where its left operand lies, products by 8-bit floats, the copy engine."""

from __future__ import annotations

import pytest

from cuir.lowering.ir import ops
from cuir.lowering.ir.ir_walk import every
from cuir.lowering.select.ways import Selection, find_selection
from cuir.text.diagnostics import CuirError
from tests.lowering.tile_ir import clean, program

PROGRAM = """
@kernel(arch="sm_90a")
def k(X: Global[f16, M, 128], Y: Global[f32, M, 64], Z: Global[f32, M, 64]):
    s, t, wide = shared(f16, [64, 64]), shared(f16, [64, 64]), shared(f16, [64, 128])
    q, out = shared(f8e4m3, [64, 128]), shared(f32, [64, 64])
    full = mbarrier(1)
    with role("all", warpgroups=1):
"""


def select(body: str, name: str) -> Selection:
    """The way of the last operation of a name."""
    kernel = clean(program(PROGRAM + "".join(f"        {line}\n" for line in body.splitlines())))
    found = [find_selection(op) for op in every(kernel) if isinstance(op, ops.Perform) and op.entry.written == name]
    assert found[-1] is not None
    return found[-1]


END = "\nmma_wait(p)\nstore(Y[0:64, :], p)"
LOOP = "a = load(s)\np = load(Z[0:64, :]) * 0.0\nfor i in range(4):\n    p = mma_async({}, t, p)\n    mma_wait(p)\nstore(Y[0:64, :], p)"


@pytest.mark.parametrize(
    ("body", "way", "because"),
    [
        ("p = mma_async(s, t)" + END, "wgmma SS", "the left operand lies in shared memory, K-major; the right one lies N-major"),
        ("p = mma_async(s.T, t.T)" + END, "wgmma SS", "the left operand lies in shared memory, M-major; the right one lies K-major"),
        ("p = mma_async(load(s), t)" + END, "wgmma RS", "the left operand is computed in registers; the right one lies N-major"),
    ],
)
def test_products_of_warpgroups(body: str, way: str, because: str) -> None:
    selection = select(body, "mma_async")
    assert (selection.way, selection.because) == (way, because)


def test_what_begins_inside_of_a_panel() -> None:
    start = "for i in range(M):\n    "
    quarter = start + "p = mma_async(s, t[:, i * 16 : i * 16 + 16])\n    mma_wait(p)\n    store(Y[0:64, 0:16], p)"
    assert select(quarter, "mma_async").way == "wgmma SS"
    for body, name, says in (
        (quarter.replace("16", "48"), "mma_async", "an operand in shared memory that begins inside of a panel"),
        (start + "store_async(out[:, i * 16 : i * 16 + 32], Y[0:64, 0:32])", "store_async", "begins inside of a panel"),
    ):
        with pytest.raises(CuirError, match=says):
            select(body, name)


def test_a_left_operand_that_a_loop_does_not_change_is_renewed() -> None:
    assert select(LOOP.format("a"), "mma_async").way == "wgmma RS, renewed"
    assert select(LOOP.format("cast(cast(a, f32) * cast(i, f32), f16)"), "mma_async").way == "wgmma RS"


def test_products_by_narrow_floats() -> None:
    dealt = select("store(Y[0:64, :], mma(wide, q.T))", "mma")
    assert dealt == Selection("mma.sync, widened in fours", "f16 in shared memory by f8e4m3 that lie column by column")
    rows = select("p = mma(s, q)\nstore(Y[0:64, 0:1], row_max(p))", "mma")
    assert rows.way == "mma.sync, widened" and rows.rejected == ("mma.sync, widened in fours: the right operand lies row by row",)


def test_the_copy_engine() -> None:
    copy = "full.expect(nbytes(wide))\ncopy_async(X[0:64, :], wide, full)\nfull.wait(0)"
    assert select(copy, "copy_async") == Selection("one lane", "one lane starts 2 copies, one for each panel of 128 bytes")
    store = "store(out, load(Y[0:64, :]))\nfence_async()\nstore_async(out, Z[0:64, :])\nstore_wait()"
    assert select(store, "store_async").rejected == ("by warps: the warps do not write just the rows that they would store",)
