"""Evaluation of operations that only the machine has: queues, branches of warps, waits that pin."""

from __future__ import annotations

import pytest
import torch

from cuir.lowering.ir import ops
from cuir.lowering.ir.ir_evaluator import evaluate
from cuir.lowering.ir.ir_text import parse
from cuir.lowering.ir.machine_ops import Queue
from cuir.lowering.passes import elide_zero_accumulators, hoist_work_item_values, multiply_by_inverses
from cuir.lowering.validate import validate
from tests.lowering.ir import cases

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of xDSL's parser


def ran(body: str, threads: int = 128, before: str = "") -> torch.Tensor:
    """Y [128, 64] after a role of one worker."""
    program = parse(f"""\
tile.kernel "k" arch="sm_90a" cluster=1 cluster_x=1 threads=128 {{
  %X = tile.tensor "X" : !tile.tensor<f16, 128, 64>
  %Y = tile.tensor "Y" written : !tile.tensor<f32, 128, 64>
  %s = tile.shared "s" offset=0 : !tile.shared<f16, 64, 64>
  %full = tile.barrier "full" count=1 warps=1 : !tile.barrier<mbarrier, 0>
  {before}
  tile.role "all" workers=1 threads={threads} registers=0 warpgroup=0 warp=0 {{
  ^bb0(%w: !tile.scalar<i32>):
    {body}
    tile.yield()
  }}
  tile.yield()
}}
""")
    y = torch.zeros(128, 64)
    evaluate(program, {"X": torch.ones(128, 64, dtype=torch.float16), "Y": y})
    return y


VOTE = """\
%i = tile.apply "rows"() : !tile.reg<i32, 128, 1>
%n = tile.constant 20 : !tile.scalar<i32>
%m = tile.constant 100 : !tile.scalar<i32>
%low = tile.apply "<"(%i, %n) : !tile.reg<bool, 128, 1>
%high = tile.apply "=="(%i, %m) : !tile.reg<bool, 128, 1>
%vote = tile.apply "|"(%low, %high) : !tile.reg<bool, 128, 1>
%zero = tile.apply "zeros"() : !tile.reg<f32, 128, 64>
%x = tile.warp_if %vote {
  %a = tile.constant 1.0 : !tile.scalar<f32>
  %b = tile.apply "+"(%zero, %a) : !tile.reg<f32, 128, 64>
  tile.yield(%b)
} else {
  tile.yield(%zero)
}
%to = tile.at %Y[: 128, : 64] : !tile.tensor<f32, 128, 64>
tile.perform "store"(place: %to, tile: %x)
"""


def test_each_warp_takes_the_branch_that_one_of_its_rows_votes_for() -> None:
    """A warp of four has rows 16 w to 16 w + 15 of each 64 of 128; a single warp has them all."""
    selected = ran(VOTE)[:, 0].reshape(8, 16)
    assert torch.equal(selected, torch.tensor([1.0, 1, 1, 0, 1, 1, 1, 0]).reshape(8, 1).expand(8, 16)), "rows 0 to 19, and 100 of warp 2"
    assert (ran(VOTE, threads=32) == 1).all()
    assert not ran(VOTE.replace("constant 20", "constant 0").replace("constant 100", "constant 200")).any()


def test_a_product_of_an_accumulator_that_holds_nothing_starts_from_zeros() -> None:
    body = """\
%place = tile.at %s[: 64, : 64] : !tile.shared<f16, 64, 64>
%box = tile.at %X[: 64, : 64] : !tile.tensor<f16, 64, 64>
%ones = tile.perform "load"(view: %box) : !tile.reg<f16, 64, 64>
tile.perform "store"(place: %place, tile: %ones)
%c = tile.nothing : !tile.reg<f32, 64, 64>
%no = tile.constant False : !tile.scalar<bool>
%yes = tile.constant True : !tile.scalar<bool>
%x = tile.perform "mma_async"(a: %place, b: %place, c: %c, holds: %no) : !tile.reg<f32, 64, 64>
%y = tile.perform "mma_async"(a: %place, b: %place, c: %x, holds: %yes) : !tile.reg<f32, 64, 64>
%z = tile.perform "mma_wait"(x0: %y) {pending=0} : !tile.reg<f32, 64, 64>
%to = tile.at %Y[: 64, : 64] : !tile.tensor<f32, 64, 64>
tile.perform "store"(place: %to, tile: %z)
"""
    y = ran(body)
    assert (y[:64] == 128).all() and not y[64:].any()


@pytest.mark.parametrize("waits", [True, False])
def test_a_pinned_wait_is_one_where_its_condition_holds(waits: bool) -> None:
    """Nobody arrives: a wait for parity 0 would be a deadlock."""
    body = f"""\
%c = tile.constant {waits} : !tile.scalar<bool>
%p = tile.constant 0 : !tile.scalar<i32>
%x = tile.apply "zeros"() : !tile.reg<f32, 64, 1>
tile.pinned(%x)
tile.pinned(%x) if %c wait %full parity %p
"""
    if waits:
        with pytest.raises(Exception, match=r"deadlock: all\[0\] waits for parity 0 of `full`"):
            ran(body)
    else:
        ran(body)


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", ["expert plain f16", "expert three f16", "expert cluster f16", "gemm f16"])
def test_units_by_a_queue_with_what_travels(name: str) -> None:
    """The words of a unit are what the roles worked out themselves, each worker's own ones too."""
    case = cases.case(name)
    kernel = case.built.clone()
    assert validate(kernel, [hoist_work_item_values, multiply_by_inverses, elide_zero_accumulators], case.arguments, ctas=case.ctas) is None
    assert any(isinstance(op, Queue) for op in kernel.body.block.ops)
    assert any(op.reads for op in kernel.walk() if isinstance(op, ops.ForUnits))
