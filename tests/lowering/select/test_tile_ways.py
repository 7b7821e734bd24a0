"""Ways of elementwise tiles: which share work between four neighbours."""

from __future__ import annotations

import pytest

from cuir.lowering.ir.build_ir import build
from cuir.lowering.ir.ir_walk import every
from cuir.lowering.passes.pipeline import optimise
from cuir.lowering.select.ways import CHOICE, Selection, find_selection
from tests.lowering.tile_ir import program

PROGRAM = """
@kernel(arch="sm_90a")
def k(X: Global[f32, M, 64], Y: Global[f32, M, {width}]):
    with role("all", warpgroups=1):
        x = load(X[0:64, 0:{width}])
        store(Y[0:64, :], {expression})
"""


def select(expression: str, width: int = 64) -> list[Selection]:
    """The ways of the tiles that a program computes."""
    kernel = build(program(PROGRAM.format(expression=expression, width=width)))
    optimise(kernel)
    ways = [s for op in every(kernel) if (s := find_selection(op)) is not None]
    return [s for s in ways if "fours" in s.way]


@pytest.mark.parametrize(
    ("expression", "way", "because"),
    [
        ("sin(x)", "fours", "four neighbours of a row have 1 functions of angles"),
        ("x / (1.0 + exp2(-abs(x)))", "fours", "four neighbours of a row have 1 shared reciprocals"),
        ("tanh(x)", "polynomials or fours", "a warp whose arguments are all small takes a short polynomial"),
    ],
)
def test_tiles_that_share_work(expression: str, way: str, because: str) -> None:
    assert [(s.way, s.because) for s in select(expression)] == [(way, because)]


def test_a_tanh_whose_argument_would_be_computed_twice() -> None:
    (selection,) = select("tanh(x * x + 1.0)")
    assert selection.way == "fours" and selection.rejected == ("polynomials or fours: the argument would be computed twice",)


@pytest.mark.parametrize(("expression", "width"), [("sin(x)", 8), ("x + 1.0", 64), ("x / 3.0", 64)])
def test_tiles_that_share_nothing(expression: str, width: int) -> None:
    assert select(expression, width) == []


@pytest.mark.parametrize(
    ("expression", "way", "because"),
    [
        ("where(x > 20.0, x, log1p(x))", "both sides", "nvcc would branch around it for each element"),
        ("where(x > 20.0, x, x * 2.0 + 1.0)", "conditional", "both sides are cheap"),
    ],
)
def test_a_choice_with_a_long_side_takes_no_branch(expression: str, way: str, because: str) -> None:
    """Else the compiler branches around it for each element, and interleaves none."""
    kernel = build(program(PROGRAM.format(expression=expression, width=64)))
    optimise(kernel)
    (choice,) = (s for op in every(kernel) if (s := find_selection(op, CHOICE)) is not None)
    assert choice.way == way and because in choice.because
