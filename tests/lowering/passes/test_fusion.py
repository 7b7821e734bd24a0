"""What is worked out inside of its reader: numbers a column in readers of all rows, with what divides them, unless they read memory."""

from __future__ import annotations

import pytest

from cuir.checking.checker import check
from cuir.lowering import lower
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
