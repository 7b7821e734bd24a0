"""Numbers of hardware barriers: in the order of use, one for each stage and worker, and no more than a CTA has."""

from __future__ import annotations

from xdsl.dialects.builtin import IntAttr

from cuir.lowering.ir.build_ir import build
from cuir.lowering.ir.ir_text import parse, show
from cuir.lowering.ir.ops import Kernel
from cuir.lowering.passes.pipeline import optimise
from cuir.lowering.select.hardware_barriers import NUMBER, number_barriers
from tests.lowering.tile_ir import program

PROGRAM = """
@kernel(arch="sm_90a")
def k(X: Global[f32, 64, 64], Y: Global[f32, 64, 64]):
    a, b = shared(f32, [64, 64]), shared(f32, [2, 64, 64])
    unused, turn, ring = named_barrier(2), named_barrier(3), named_barrier(3, stages=3)
    with role("first", warpgroups=1):
        ring[1].sync()
        store(a, load(X[0:64, :]))
        store(Y[0:64, :], load(a.T))
    with role("second", warpgroups=2) as w:
        turn.sync()
        ring[0].sync()
        store(b[w], load(X[0:64, :]))
        store(Y[0:64, :], load(b[w].T))
"""


def lowered() -> Kernel:
    kernel = build(program(PROGRAM))
    optimise(kernel)
    return kernel


def test_barriers_are_numbered_in_the_order_of_their_use() -> None:
    kernel = lowered()
    numbers = {op.symbol.data: op.attributes.get(NUMBER) for op in (*kernel.roles, *kernel.body.block.ops) if hasattr(op, "symbol")}
    found = {name: n.data for name, n in numbers.items() if isinstance(n, IntAttr)}
    assert found == {"ring": 1, "first": 4, "turn": 5, "second": 6}
    assert show(parse(show(kernel))) == show(kernel)


def test_what_needs_too_many_is_named() -> None:
    kernel = lowered()
    needs = {limit: user.symbol.data if (user := number_barriers(kernel, limit)) is not None else None for limit in (8, 7, 5, 2)}
    assert needs == {8: None, 7: "second", 5: "turn", 2: "ring"}
