"""Operations on tiles that the machine has: their text, their rules, and what they give."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from xdsl.utils.exceptions import VerifyException

from cuir.lowering.ir import ops
from cuir.lowering.ir.ir_text import parse, show
from cuir.lowering.ir.ir_types import tile
from cuir.lowering.ir.machine_tiles import after, by_reciprocal, by_rows, line, pin, shared_tanh
from cuir.syntax.types import F32, I32
from tests.lowering.passes.lowering import role

FULL, ROWS, COLUMNS = tile(F32, 4, 32), tile(F32, 4, 1), tile(F32, 1, 32)


def value(kind: object) -> ops.SSAValue:
    """A value of a type; nothing else counts."""
    return ops.apply("full", [ops.constant(0.0, F32).result], kind).result  # type: ignore[arg-type]


SLOPE = ops.constant(1.0, F32).result


def test_the_text_is_read_back() -> None:
    text = role(
        """\
%l = tile.line %f from %x : !tile.reg<f32, 64, 64>
%m = tile.line %f : !tile.reg<f32, 1, 64>
%one = tile.constant 1 : !tile.scalar<i32>
%i = tile.line %one from %n near : !tile.reg<i32, 64, 64>
%j = tile.line %one : !tile.reg<i32, 1, 64>
%p = tile.pin(%m) : !tile.reg<f32, 1, 64>
%h = tile.after(%g, %S) : !tile.scalar<f32>
%y = tile.by_rows "log2"(%x) : !tile.reg<f32, 64, 1>
%z = tile.by_rows "one_over"(%x) : !tile.reg<f32, 64, 1>
%d = tile.by_reciprocal(%S, %l) shared spreads : !tile.reg<f32, 64, 64>
%e = tile.by_reciprocal(%l) : !tile.reg<f32, 64, 64>
%t = tile.shared_tanh(%S, %f) : !tile.reg<f32, 64, 64>
%u = tile.shared_tanh(%S) : !tile.reg<f32, 64, 64>
%box = tile.at %X[%n, %n : 64] : !tile.tensor<f32, 64>
%k = tile.read_columns(%box) : !tile.reg<f32, 1, 64, lanes>
%v = tile.convert_layout(%k) : !tile.reg<f32, 1, 64>"""
    )
    output = show(parse(text))
    assert show(parse(output)) == output
    for name in (
        "line %f from",
        "line %one from %n near :",
        "pin",
        "after",
        'by_rows "log2"',
        "shared spreads",
        "shared_tanh(%S, %f)",
        "read_columns",
        "convert_layout(%k)",
    ):
        assert f"tile.{name}" in output or name in output


@pytest.mark.parametrize(
    "wrong",
    [
        "%l = tile.line %n from %x : !tile.reg<f32, 64, 64>",  # a slope of another dtype
        "%l = tile.line %f from %S : !tile.reg<f32, 64, 64>",  # the start is no number a row
        "%l = tile.line %f : !tile.reg<f32, 64, 1>",
        '%y = tile.by_rows "exp2"(%x) : !tile.reg<f32, 64, 1>',
        '%y = tile.by_rows "log2"(%S) : !tile.reg<f32, 64, 64>',
        "%d = tile.by_reciprocal(%x) shared : !tile.reg<f32, 64, 1>",
        "%d = tile.by_reciprocal(%S) spreads : !tile.reg<f32, 64, 64>",
        "%d = tile.by_reciprocal(%S, %S, %S) : !tile.reg<f32, 64, 64>",
        "%t = tile.shared_tanh(%x) : !tile.reg<f32, 64, 1>",
        "%box = tile.at %X[%n, %n : 32] : !tile.tensor<f32, 32>\n%k = tile.read_columns(%box) : !tile.reg<f32, 1, 64, lanes>",
        "%box = tile.at %X[%n, %n : 64] : !tile.tensor<f32, 64>\n%k = tile.read_columns(%box) : !tile.reg<f32, 1, 64>",
        "%l = tile.line %f : !tile.reg<f32, 1, 64>\n%v = tile.convert_layout(%l) : !tile.reg<f32, 1, 64>",
    ],
)
def test_what_makes_no_sense_is_refused(wrong: str) -> None:
    with pytest.raises(VerifyException):
        parse(role(wrong))


@given(st.floats(-1e6, 1e6, width=32), st.floats(-1e3, 1e3, width=32))
def test_a_line_is_rounded_once(start: float, slope: float) -> None:
    op = line(SLOPE, value(ROWS), FULL)
    rows = torch.tensor([[start], [0.0], [1.0], [-start]])
    (result,) = op.evaluate(None, [slope, rows])
    exact = rows.double() + slope * torch.arange(32).double()
    assert result.shape == (4, 32) and torch.equal(result, exact.float())


def test_lines_without_rows_and_of_integers() -> None:
    (result,) = line(SLOPE, None, COLUMNS).evaluate(None, [0.5])
    assert torch.equal(result, torch.arange(32).reshape(1, 32) * 0.5)
    item = ops.constant(1, I32).result
    (result,) = line(item, item, tile(I32, 2, 32)).evaluate(None, [1, 2**31 - 2])
    assert result.dtype == torch.int32 and result[1, :3].tolist() == [2**31 - 2, 2**31 - 1, -(2**31)]


def test_functions_of_rows() -> None:
    x = torch.tensor([[0.5], [0.0], [math.inf], [3.0]])
    (result,) = by_rows("log2", value(ROWS)).evaluate(None, [x])
    assert torch.equal(result, torch.log2(x))
    (result,) = by_rows("one_over", value(ROWS)).evaluate(None, [x])
    assert torch.equal(result, 1 / x)


def test_a_pinned_tile_and_a_late_number_are_themselves() -> None:
    x = torch.rand(4, 32)
    assert torch.equal(pin(value(FULL)).evaluate(None, [x])[0], x)
    assert after(SLOPE, value(FULL)).evaluate(None, [2.5, x]) == [2.5]


def test_a_quotient_is_a_product_with_a_reciprocal() -> None:
    x, y = torch.rand(4, 32), 1 + torch.rand(4, 32)
    (result,) = by_reciprocal(value(FULL), value(FULL), FULL, shared=True).evaluate(None, [x, y])
    assert torch.equal(result, x * (1 / y))
    (result,) = by_reciprocal(None, value(FULL), FULL).evaluate(None, [y])
    assert torch.equal(result, 1 / y)


def test_where_a_nan_goes() -> None:
    y = torch.ones(4, 32)
    y[2, 17] = math.nan
    (result,) = by_reciprocal(None, value(FULL), FULL, shared=True).evaluate(None, [y])
    assert result.isnan().nonzero().tolist() == [[2, 17]]
    (result,) = by_reciprocal(None, value(FULL), FULL, shared=True, spreads=True).evaluate(None, [y])
    assert result.isnan().nonzero().tolist() == [[2, 16], [2, 17], [2, 24], [2, 25]]  # a thread's columns of 16 to 31


def test_tanh_of_a_product() -> None:
    x = torch.randn(4, 32)
    (result,) = shared_tanh(value(FULL), SLOPE).evaluate(None, [x, 0.25])
    assert torch.equal(result, torch.tanh(x * 0.25))
