"""Bits of words, of which each row's are read once."""

from __future__ import annotations

import re

import torch

from cuir.lowering.ir.ir_text import parse, show
from cuir.lowering.ir.ir_walk import every
from cuir.lowering.ir.row_parts import Bits
from cuir.lowering.passes import eliminate_dead_code, limit_columns, load_mask_words
from tests.lowering.passes.lowering import role

TESTED = """\
%word = tile.constant 32 : !tile.scalar<i32>
%k = tile.apply "//"(%c, %word) : !tile.reg<i32, 1, 64>
%at = tile.at %I[%r, %k] : !tile.element<i32, 64, 64>
%x_of = tile.perform "gather"(place: %at) : !tile.reg<i32, 64, 64>
%b = tile.apply "bit"(%x_of, %c) : !tile.reg<bool, 64, 64>
"""
CHOSEN = '%y = tile.apply "where"({}, %S, %f) : !tile.reg<f32, 64, 64>\n'


def after(body: str, written: str = "") -> str:
    text = role(body, "%y").replace("  %n = ", f'  %I = tile.tensor "I"{written} : !tile.tensor<i32, "M", 2>\n  %n = ', 1)
    ir = parse(text)
    limit_columns.run(ir)
    load_mask_words.run(ir)
    ir.verify()
    eliminate_dead_code.run(ir)
    assert show(parse(show(ir))) == show(ir)
    return show(ir)


def test_a_word_for_each_32_columns_is_read_once_a_row() -> None:
    result = after(TESTED + CHOSEN.format("%b"))
    assert len(re.findall(r'"gather"\(place: %\w+\) : !tile.reg<i32, 64, 1>', result)) == 2
    assert re.search(r"tile.bits\(%\w+, %\w+\) : !tile.reg<bool, 64, 64>", result) and '"bit"' not in result


def test_a_limit_on_columns_clears_bits() -> None:
    limit = '%l = tile.apply "<"(%c, %n) : !tile.reg<bool, 1, 64>\n%m = tile.apply "&"(%b, %l) : !tile.reg<bool, 64, 64>\n'
    result = after(TESTED + limit + CHOSEN.format("%m"))
    assert re.search(r"tile.bits\(%\w+, %\w+\) below %n : !tile.reg<bool, 64, 64>", result) and '"<"' not in result


def test_other_words_stay() -> None:
    assert "tile.bits" not in after(TESTED.replace("constant 32", "constant 16") + CHOSEN.format("%b"))
    assert "tile.bits" not in after(TESTED.replace('"bit"(%x_of, %c)', '"bit"(%x_of, %k)') + CHOSEN.format("%b"))
    assert "tile.bits" not in after(TESTED + CHOSEN.format("%b"), written=" written")


def test_bits_mean_those_of_the_words() -> None:
    ir = parse(
        role(TESTED + CHOSEN.format("%b"), "%y").replace("  %n = ", '  %I = tile.tensor "I" : !tile.tensor<i32, "M", 2>\n  %n = ', 1)
    )
    load_mask_words.run(ir)
    bits = next(o for o in every(ir) if isinstance(o, Bits))
    words = [torch.tensor([[5], [-(2**31)]], dtype=torch.int32).repeat(32, 1), torch.tensor([[0], [1]], dtype=torch.int32).repeat(32, 1)]
    (result,) = bits.evaluate(None, words)
    assert result[0].nonzero().flatten().tolist() == [0, 2] and result[1].nonzero().flatten().tolist() == [31, 32]
