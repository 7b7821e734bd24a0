"""Tiles that are lines, and their parts."""

from __future__ import annotations

import re

import pytest

from cuir.lowering.ir.ir_text import parse, show
from cuir.lowering.passes import decompose_affine_tiles, eliminate_dead_code, limit_columns
from tests.lowering.conftest import kernel
from tests.lowering.passes.lowering import LINES, role, text

STORE = "store(Z[rows(64), cols(64)], A)"


def format_value(value: str) -> str:
    return text(kernel(f"q, k = n + rows(64), cols(64)\nA = {value}\n{STORE}"), LINES)


@pytest.mark.parametrize(
    "value",
    [
        "cast(k - q, f32)",
        "cast(k - q, f32) * scale",
        "scale * cast(k - q, f32)",
        "-cast(q - k, f32) * scale + cast(q, f32)",
        "cast(2 * k + q, f32) * 0.5 - scale",
        "(cast(k, f32) * scale + cast(k, f32)) - cast(q, f32)",
        "cast(k - q, f32) * scale * scale + cast(q * q, f32)",
    ],
)
def test_sums_and_products_are_one_line(value: str) -> None:
    result = format_value(value)
    assert len(re.findall(r"tile\.line .*: !tile.reg<f32, 64, 64>", result)) == 1
    assert not re.search(r'tile\.apply "[-+*]"\(.*\) : !tile.reg<f32, 64, 64>', result)


def test_programs_that_mean_the_same_are_the_same_line() -> None:
    first, *rest = (
        re.search(r"tile\.line .*", format_value(v)).group()  # type: ignore[union-attr]
        for v in ("cast(k - q, f32) * scale", "scale * cast(k - q, f32)", "cast(-q + k, f32) * scale")
    )
    assert all(o == first for o in rest)


@pytest.mark.parametrize(
    "value",
    [
        "cast(k, f32) * cast(q, f32)",  # a slope of its own for each row
        "cast(k * k + q, f32)",
        "cast(k, f32) * cast(k, f32) + zeros(f32, [64, 64])",
        "full(f32, [64, 64], scale)",
    ],
)
def test_other_tiles_are_no_lines(value: str) -> None:
    assert not re.search(r"tile\.line .*: !tile.reg<f32, 64, 64>", format_value(value))


def after(body: str, near: bool = True) -> str:
    ir = parse(role(body, "%a"))
    decompose_affine_tiles.run(ir, near=lambda value: near)
    ir.verify()
    eliminate_dead_code.run(ir)
    return show(ir)


CAST = '%i = tile.apply "-"(%c, %r) : !tile.reg<i32, 64, 64>\n%a = tile.apply "cast"(%i) : !tile.reg<f32, 64, 64>'


def test_the_parts_of_a_line() -> None:
    result = after(CAST)
    base = re.search(r'(%\w+) = tile.apply "neg"\(%r\) : !tile.reg<i32, 64, 1>', result)
    assert base is not None
    rows = re.search(rf'(%\w+) = tile.apply "cast"\({base[1]}\) : !tile.reg<f32, 64, 1>', result)
    slope = re.search(r"(%\w+) = tile.constant 1.0 : !tile.scalar<f32>", result)
    assert rows is not None and slope is not None and f"tile.line {slope[1]} from {rows[1]} : !tile.reg<f32, 64, 64>" in result


def test_what_decides_is_computed_as_written() -> None:
    result = after(CAST.replace('"cast"(%i)', '"cast"(%i) exact'))
    assert 'tile.apply "cast"' in result and not re.search(r"tile\.line .*<f32", result)
    product = CAST.replace("%a =", "%b =") + '\n%a = tile.apply "*"(%b, %f) exact : !tile.reg<f32, 64, 64>'
    assert 'tile.apply "*"' in after(product)


def test_what_may_wrap_is_converted_element_by_element() -> None:
    assert 'tile.apply "cast"' in after(CAST, near=False)


def test_which_indices_are_near_is_asked() -> None:
    store = "store(Z[rows(64), cols(64)], A)"
    for start, result in (("M", True), ("I[0]", False)):
        body = f"q, k = {start} + rows(64), cols(64)\nA = cast(k - q, f32)\n{store}"
        assert bool(re.search(r"tile\.line .*<f32, 64, 64>", text(kernel(body), [limit_columns.run, decompose_affine_tiles.run]))) == result


def test_integer_lines_wrap_and_need_no_such_care() -> None:
    result = after(
        '%i = tile.apply "-"(%c, %r) : !tile.reg<i32, 64, 64>\n%j = tile.apply "abs"(%i) : !tile.reg<i32, 64, 64>\n%a = tile.apply "cast"(%j) : !tile.reg<f32, 64, 64>',
        near=False,
    )
    assert re.search(r"tile\.line %\w+ from %\w+ : !tile.reg<i32, 64, 64>", result)
    result = after(
        '%i = tile.apply "-"(%c, %r) : !tile.reg<i32, 64, 64>\n%j = tile.apply "max"(%i, %n) : !tile.reg<i32, 64, 64>\n%a = tile.apply "cast"(%j) : !tile.reg<f32, 64, 64>'
    )
    assert re.search(r"tile\.line %\w+ from %\w+ near : !tile.reg<i32, 64, 64>", result)


def test_the_magnitude_of_an_index_tile_is_that_of_a_line_of_floats() -> None:
    body = '%i = tile.apply "-"(%c, %r) : !tile.reg<i32, 64, 64>\n%j = tile.apply "abs"(%i) : !tile.reg<i32, 64, 64>\n%a = tile.apply "cast"(%j) : !tile.reg<f32, 64, 64>'
    result = after(body)
    assert re.search(r"tile\.line %\w+ from %\w+ : !tile.reg<f32, 64, 64>", result) and re.search(
        r'"abs"\(%\w+\) : !tile.reg<f32, 64, 64>', result
    )


def test_a_limit_on_columns_stays_one() -> None:
    result = text(kernel(f"q, k = n + rows(64), cols(64)\nA = where(k + 3 <= q, 1.0, zeros(f32, [64, 64]))\n{STORE}"), LINES)
    assert "tile.line" not in result
