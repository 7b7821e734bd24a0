"""Indices divided by the size of the block in which their tile lies."""

from __future__ import annotations

import re

import pytest

from cuir.lowering.ir.ir_text import parse, show
from cuir.lowering.passes import hoist_block_indices
from tests.lowering.passes.lowering import role

INDEX = """\
%size = tile.constant {size} : !tile.scalar<i32>
%by = tile.constant {by} : !tile.scalar<i32>
%start = tile.apply "*"(%w, %size) : !tile.scalar<i32>
%i = tile.apply "+"(%start, %r) : !tile.reg<i32, 64, 1>
%d = tile.apply "{op}"(%i, %by) : !tile.reg<i32, 64, 1>
%z = tile.apply "cast"(%d) : !tile.reg<f32, 64, 1>
%y = tile.apply "+"(%S, %z) : !tile.reg<f32, 64, 64>
"""


def after(size: int, by: int, op: str) -> str:
    ir = parse(role(INDEX.format(size=size, by=by, op=op), "%y"))
    hoist_block_indices.run(ir)
    ir.verify()
    return show(ir)


@pytest.mark.parametrize(("size", "by"), [(64, 64), (64, 128), (128, 64), (64, 192), (192, 192)])
def test_a_quotient_is_that_of_the_first_index(size: int, by: int) -> None:
    assert re.search(r'tile.apply "//"\(%start, %by\) : !tile.scalar<i32>', after(size, by, "//"))


def test_a_remainder_is_counted_from_that_of_the_first_index() -> None:
    result = after(64, 128, "%")
    assert re.search(r'"%"\(%start, %by\) : !tile.scalar<i32>', result) and re.search(r'"\+"\(%\d+, %r\) : !tile.reg<i32, 64, 1>', result)
    assert re.search(r'%z = tile.apply "cast"\(%r\)', after(64, 64, "%"))  # which is 0


@pytest.mark.parametrize(("size", "by"), [(32, 64), (64, 32), (64, 96), (16, 128)])
def test_a_tile_that_may_lie_in_two_blocks_stays(size: int, by: int) -> None:
    assert '"//"(%i, %by)' in after(size, by, "//")


GATHERED = """\
%one = tile.apply "full"(%n) : !tile.reg<i32, 64, 1>
%row = tile.at %I[%one] : !tile.element<i32, 64, 1>
%j = tile.perform "gather"(place: %row) : !tile.reg<i32, 64, 1>
%at = tile.at %X[%j, %c] : !tile.element<f32, 64, 64>
%y = tile.perform "gather"(place: %at) : !tile.reg<f32, 64, 64>
"""


def test_an_index_that_is_read_at_one_place_is_read_once() -> None:
    text = role(GATHERED, "%y").replace("  %n = ", '  %I = tile.tensor "I" : !tile.tensor<i32, "M">\n  %n = ', 1)
    ir = parse(text)
    hoist_block_indices.run(ir)
    ir.verify()
    assert re.search(r'"gather"\(place: %\d+\) : !tile.reg<i32, 1, 1>', show(ir))
