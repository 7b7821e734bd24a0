"""Values inlined in their readers: numbers a column in readers of all rows, unless they read memory."""

from __future__ import annotations

import pytest

from cuir.checking.checker import check
from cuir.lowering import lower
from cuir.lowering.passes.inline_elementwise import DEEPEST
from cuir.syntax.parser import parse

TEXT = """
@kernel(arch="sm_90a")
def f(X: Global[f32, 64, 64], I: Global[i32, 64], Y: Global[f32, 64, 64], n: i32):
    with role("one", warpgroups=1):
        column = {column}
        store(Y[rows(64), cols(64)], X[rows(64), cols(64)] + cast(rows(64) * n - column, f32))
"""


@pytest.mark.parametrize(
    ("column", "array"),
    [("cols(64) * cols(64)", False), ("cols(64) // n", False), ("cols(64) % n + cols(64) // n", False), ("I[cols(64)]", True)],
)
def test_numbers_a_column(column: str, array: bool) -> None:
    """A thread has 16 columns of 64, and 32 elements."""
    text = lower(check(parse(TEXT.format(column=column)))).source
    role = text[text.index("// ---- role") :]
    assert ("int column[16]" in role) == array
    assert "[16]" in role if array else "[16]" not in role


CHAIN = """
@kernel(arch="sm_90a")
def f(X: Global[f32, 64, 64], Y: Global[f32, 64, 64], n: f32):
    with role("one", warpgroups=1):
        {first}
{chain}        store(Y[rows(64), cols(64)], {last})
"""


@pytest.mark.parametrize(
    ("first", "step", "last"),
    [
        ("x = X[rows(64), cols(64)]", "x = x * 1.5 + n", "x"),
        ("x = X[rows(64), cols(64)]", "x = max(x, n) * 2.0", "x"),
        ("x = n", "x = x * 1.5 + n", "full(f32, [64, 64], x)"),
    ],
)
def test_a_long_chain_is_cut_into_expressions(first: str, step: str, last: str) -> None:
    """Three hundred statements of which each reads the one before: no expression of C++ is as deep as that."""
    text = CHAIN.format(first=first, chain=f"        {step}\n" * 300, last=last)
    source = lower(check(parse(text))).source
    deepest = 0
    for line in source.splitlines():
        depth = 0
        for letter in line:
            depth += (letter == "(") - (letter == ")")
            deepest = max(deepest, depth)
    assert 8 < deepest <= 2 * DEEPEST
