"""Choices by a vote of a warp: the branch gives what the choice gives, whatever the vote by parts says."""

from __future__ import annotations

import pytest
import torch

import cuir
from cuir.lowering.ir.build import build
from cuir.lowering.ir.evaluate import evaluate
from cuir.lowering.ir.ops import Kernel
from cuir.lowering.ir.warps import RowBound, WarpIf
from cuir.lowering.passes import simplify, value_numbering, warp_branches

KERNEL = """
@kernel(arch="sm_90a")
def chosen(X: Global[f32, M, 64], f: f32, Y: Global[f32, M], Z: Global[f32, M]):
    with role("all", warpgroups=1):
        x = load(X[0:64, :])
        top = row_max(x - 10.0) * f
        some = warp_any({test})
        y = where(some, top * 2.0, top)
        store(Y[rows(64)], y)
        store(Z[rows(64)], where(some, exp2(y), 1.0))
"""
TESTS = ["top > -1.0", "top - 3.0 > 8.0", "(top > 100.0) | (top < -9.0)", "-top < 0.5", "x > 2.5", "f > 0.0"]


def results(ir: Kernel, f: float) -> tuple[torch.Tensor, torch.Tensor]:
    y, z = torch.zeros(64), torch.zeros(64)
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(3))
    evaluate(ir, {"X": x + torch.arange(64.0)[:, None] / 8, "f": f, "Y": y, "Z": z})
    return y, z


@pytest.mark.parametrize("f", [1.0, -1.0, 0.0])
@pytest.mark.parametrize("test", TESTS)
def test_a_branch_gives_what_the_choice_gives(test: str, f: float) -> None:
    """Also where rows of a warp are negative, so that a bound of the thread's own elements says more than there is, and where the factor turns the order."""
    ir = build(cuir.check(cuir.parse(KERNEL.format(test=test))))
    simplify.run(ir)
    value_numbering.run(ir)
    wanted = results(ir, f)
    warp_branches.run(ir)
    ir.verify()
    assert any(isinstance(op, WarpIf) for op in ir.walk())
    assert all(torch.equal(a, b) for a, b in zip(results(ir, f), wanted, strict=True))


@pytest.mark.parametrize(("test", "parts"), [("top > -1.0", True), ("(top > 100.0) | (top < -9.0)", False), ("x > 2.5", False)])
def test_threads_ask_their_own_elements_where_a_greater_maximum_alone_can_matter(test: str, parts: bool) -> None:
    ir = build(cuir.check(cuir.parse(KERNEL.format(test=test))))
    simplify.run(ir)
    value_numbering.run(ir)
    warp_branches.run(ir)
    assert any(isinstance(op, RowBound) for op in ir.walk()) == parts
