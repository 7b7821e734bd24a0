"""Stages and parities of rings are carried along: of counters that start at a known number and go up by one, and no others."""

from __future__ import annotations

import re

import pytest

from cuir.lowering.ir.build_ir import build
from cuir.lowering.ir.ir_text import show
from cuir.lowering.passes import carry_ring_indices
from cuir.lowering.validate import validate
from tests.lowering.conftest import kernel
from tests.lowering.passes.lowering import clean
from tests.strategies.typed import arguments


@pytest.mark.parametrize(
    ("body", "carried"),
    [
        ("i = 0\nfor t in work:\n    x = i % 3\n    i += 1\n    store(I[x], x)", True),
        ("i = 5\nfor t in work:\n    x = i // 3 % 2\n    i += 1\n    store(I[x], x + 7)", True),
        ("i = 5\nfor t in work:\n    for j in range(n):\n        x = i // 3 % 2 + i % 3\n        i += 1\n        store(I[x], x + i)", True),
        ("i = 1\nfor t in work:\n    if t % 2 == 0:\n        i = i + 1\n    store(I[t], i % 2)", True),  # goes up on one path alone
        ("i = 0\nfor t in work:\n    x = i % 3\n    i += 2\n    store(I[x], x)", False),
        ("i = n\nfor t in work:\n    x = i % 3\n    i += 1\n    store(I[x], x)", False),
        ("i = 0 - 5\nfor t in work:\n    x = i % 3\n    i += 1\n    store(I[x], x)", False),
        ("i = 0\nfor t in work:\n    x = i % n\n    i += 1\n    store(I[x], x)", False),
    ],
)
def test_counters_carry_their_stage_and_parity(body: str, carried: bool) -> None:
    checked = kernel(body)
    result = build(checked)
    clean(result)
    before = len(re.findall(r'"%"|"//"', show(result)))
    assert validate(result, [carry_ring_indices], arguments(checked, {"M": 64 * 9}) | {"n": 4}) is None  # every stage comes twice and more
    clean(result)
    remaining = [line for line in show(result).split("\n") if re.search(r'"%"|"//"', line) and "%t" not in line]
    assert (len(remaining) == 0) == carried and before > 0
