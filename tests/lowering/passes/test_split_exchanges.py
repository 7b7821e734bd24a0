"""Exchanges of warps: the steps that the pass makes, and that results and registers stay."""

from __future__ import annotations

import pytest
import torch

from cuir.lowering.ir import ops
from cuir.lowering.ir.build_ir import build
from cuir.lowering.ir.exchanges import GiveColumns, ReleaseSlot, TakeColumns
from cuir.lowering.ir.ir_text import parse, show
from cuir.lowering.ir.ir_walk import every
from cuir.lowering.passes import split_exchanges
from cuir.lowering.passes.pipeline import optimise
from cuir.lowering.validate import random_arguments, validate
from tests.lowering.kernels import queues
from tests.lowering.passes.lowering import role
from tests.lowering.tile_ir import program

PROGRAM = """
@kernel(arch="sm_90a")
def k(X: Global[f32, {rows}, 64], Y: Global[f32, 64]):
    with role("all", {workers}):
        x = load(X[0:{rows}, :])
        store(Y[cols(64)], col_sum(x) + col_max(x))
"""


@pytest.mark.parametrize(("workers", "rows", "count"), [("warpgroups=1", 64, 2), ("warpgroups=1", 1, 0), ("warps=1", 16, 0)])
def test_columns_of_several_warps_are_split(workers: str, rows: int, count: int) -> None:
    checked = program(PROGRAM.format(workers=workers, rows=rows))
    kernel = build(checked)
    assert validate(kernel, [split_exchanges], random_arguments(checked, torch.Generator().manual_seed(0))) is None
    found = list(every(kernel))
    assert [sum(isinstance(op, kind) for op in found) for kind in (GiveColumns, TakeColumns)] == [count, count]
    assert sum(isinstance(op, ops.Apply) and bool(op.kind.column_reduction) for op in found) == 2 - count
    assert show(parse(show(kernel))) == show(kernel)


def test_a_result_has_the_registers_of_its_part() -> None:
    kernel = parse(
        role('%y = tile.apply "col_max"(%S) : !tile.reg<f32, 1, 64>\n%z = tile.apply "+"(%S, %y) : !tile.reg<f32, 64, 64>', "%z")
    )
    split_exchanges.run(kernel)
    kernel.verify()
    (give,) = (op for op in every(kernel) if isinstance(op, GiveColumns))
    (take,) = (op for op in every(kernel) if isinstance(op, TakeColumns))
    assert take.x is give.result and give.result.type == take.result.type and take.result.name_hint == "y"


def test_a_slot_is_given_back_first() -> None:
    kernel = build(queues()[0])
    optimise(kernel, {"insert_synchronisation"})
    loops = [op for op in every(kernel) if isinstance(op, ops.ForUnits)]
    assert len(loops) == 2 and all(isinstance(loop.body.block.first_op, ReleaseSlot) for loop in loops)
