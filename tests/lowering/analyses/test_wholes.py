"""Whole numbers among floats."""

from __future__ import annotations

import pytest

from cuir.lowering.analyses.wholes import is_integral
from cuir.lowering.ir import ops
from cuir.lowering.ir.ir_walk import every
from cuir.lowering.ir.text import parse
from tests.lowering.passes.lowering import role

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
