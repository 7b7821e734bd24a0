"""Runs of copies and products: which are issued together, and what ends a run."""

from __future__ import annotations

from cuir.lowering.ir import ops
from cuir.lowering.ir.ir_text import parse, show
from cuir.lowering.ir.ir_walk import every
from cuir.lowering.select.runs import count_run, list_run
from tests.lowering.tile_ir import clean, program

HEAD = """
@kernel(arch="sm_90a")
def k(X: Global[f16, M, 64], Y: Global[f32, M, 64]):
    s, t = shared(f16, [64, 64]), shared(f16, [64, 64])
    full = mbarrier(1)
    with role("all", warpgroups=1):
        x = load(Y[0:64, :])
"""


def runs(body: str) -> list[int]:
    """The counts of all copies and products, in order."""
    kernel = clean(program(HEAD + "".join(f"        {line}\n" for line in body.splitlines())))
    assert show(parse(show(kernel))) == show(kernel)  # with the record
    started = [
        op for op in every(kernel) if isinstance(op, ops.Perform) and (op.entry.effects.completes or op.entry.effects.group == "wgmma")
    ]
    for op in started:
        members = [part for part in list_run(op) if isinstance(part, ops.Perform)]
        assert len(members) == count_run(op) and {part.op for part in members} == {started[0].op}
    return [count_run(op) for op in started]


COPIES = "full.expect(nbytes(s) + nbytes(t))\ncopy_async(X[0:64, :], s, full)\n{}copy_async(X[64:128, :], t, full)\nfull.wait(0)"


def test_copies_in_a_row_are_started_together() -> None:
    assert runs(COPIES.format("")) == [2, 1]


def test_an_effect_ends_a_run_of_copies() -> None:
    assert runs(COPIES.format("store(Y[0:64, :], x)\n")) == [1, 1]


PRODUCTS = "p = mma_async(s, t)\n{}q = mma_async(t, s)\nmma_wait(p)\nmma_wait(q)\nstore(Y[0:64, :], p + q)"


def test_products_in_a_row_are_issued_together() -> None:
    assert runs(PRODUCTS.format("")) == [2, 1]


def test_work_on_tiles_ends_a_run_of_products() -> None:
    assert runs(PRODUCTS.format("store(Y[64:128, :], x * 2.0)\n")) == [1, 1]
