"""Bounds of floats, and floats that are whole numbers."""

from __future__ import annotations

import math

import pytest

from cuir.lowering.analyses.float_ranges import UNBOUNDED, compute_float_range, is_integral
from cuir.lowering.ir import ops
from cuir.lowering.ir.build_ir import build
from cuir.lowering.ir.ir_text import parse
from cuir.lowering.ir.ir_walk import every
from cuir.lowering.ir.ops import Perform
from tests.lowering.conftest import kernel
from tests.lowering.passes.lowering import role

INF = math.inf


def compute_range(*lines: str) -> tuple[float, float]:
    """The range of what a body stores last."""
    ir = build(kernel("\n".join(["S = zeros(f32, [64, 64]) + scale", *lines, "store(Z[rows(64), cols(64)], V)"])))
    stores = [op for op in every(ir) if isinstance(op, Perform) and op.op == "store"]
    return compute_float_range(stores[-1].arg("tile"))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("S", UNBOUNDED),
        ("exp2(S)", (0.0, 2.0**1000)),
        ("exp2(min(S, 3.0))", (0.0, 8.0)),
        ("1.0 + exp2(min(S, 3.0))", (1.0, 9.0)),
        ("exp2(min(S, 3.0)) - 1.0", (-1.0, 7.0)),
        ("-exp2(min(S, 3.0))", (-8.0, 0.0)),
        ("max(1.0, min(S, 100.0))", (1.0, 100.0)),
        ("max(S, 2.0)", (2.0, INF)),
        ("abs(max(min(S, 3.0), -5.0))", (0.0, 5.0)),
        ("abs(min(S, -5.0))", (5.0, INF)),
        ("where(S > 0.0, full(f32, [64, 64], 2.0), 3.0)", (2.0, 3.0)),
        ("tanh(S) + 1.0", (0.0, 2.0)),
        ("S * 0.0", UNBOUNDED),
        ("S - S", UNBOUNDED),
    ],
)
def test_ranges(value: str, expected: tuple[float, float]) -> None:
    assert compute_range(f"V = {value}") == expected


def test_branches_give_what_either_region_gives() -> None:
    assert compute_range("V = full(f32, [64, 64], 1.0)", "if n > 0:", "    V = exp2(min(S, 3.0))") == (0.0, 8.0)


def test_what_a_loop_makes_of_itself_has_no_range() -> None:
    assert compute_range("V = exp2(min(S, 3.0))", "for i in range(n):", "    V = V + 1.0") == UNBOUNDED


def test_what_a_loop_leaves_alone_keeps_its_range() -> None:
    assert compute_range("V = exp2(min(S, 3.0))", "for i in range(n):", "    V = exp2(min(S, 5.0))") == (0.0, 32.0)


BODY = """\
%i = tile.apply "cast"(%r) : !tile.reg<f32, 64, 1>
%k = tile.apply "cast"(%c) : !tile.reg<f32, 1, 64>
%d = tile.apply "-"(%i, %k) : !tile.reg<f32, 64, 64>
%m = tile.apply "abs"(%d) : !tile.reg<f32, 64, 64>
%one = tile.constant {number} : !tile.scalar<f32>
%u = tile.apply "{op}"(%m, %one) : !tile.reg<f32, 64, 64>
%y = tile.apply "log2"(%u) : !tile.reg<f32, 64, 64>
"""


@pytest.mark.parametrize(
    ("op", "number", "holds"), [("+", 1.0, True), ("*", 3.0, True), ("max", 1.0, True), ("+", 0.5, False), ("/", 2.0, False)]
)
def test_sums_and_products_of_integers_that_were_converted(op: str, number: float, holds: bool) -> None:
    ir = parse(role(BODY.format(op=op, number=number), "%y"))
    (log,) = [o for o in every(ir) if isinstance(o, ops.Apply) and o.kind.logarithm]
    assert is_integral(log.arguments[0]) == holds and not is_integral(log.result)
