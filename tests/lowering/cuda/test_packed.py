"""Halves lie in pairs in 32-bit registers: nothing reads such a register as if it were a number."""

from __future__ import annotations

import re

import pytest

from cuir.lowering import lower
from tests.gpu.test_expressions import EXPRESSIONS, kernel


@pytest.mark.parametrize("expression", EXPRESSIONS)
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_pairs_are_unpacked(expression: str, dtype: str) -> None:
    text = lower(kernel(expression, dtype)).source
    pairs = set(re.findall(r"uint32_t (\w+)\[\d+\];", text))
    assert pairs
    for name in pairs:
        # by element (i_) only through unpack; by pair (p_, k_) it is moved, packed into, or an operand
        assert not re.search(rf"\b{name}\[[^\]]*\bi_\b[^\]]*\]", text), name
    assert f"cuir::unpack_{dtype}(" in text
