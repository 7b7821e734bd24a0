"""Numbers in messages: integers are whole, different numbers look different."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cuir.syntax.parser import parse
from cuir.verification import verify
from cuir.verification.values.number_text import describe_overflow, show_different, show_number


@given(st.integers(-(2**53) + 1, 2**53 - 1))
def test_integers_are_printed_whole(n: int) -> None:
    assert show_number(n) == show_number(float(n)) == str(n)


@given(st.floats(allow_nan=False), st.floats(allow_nan=False))
def test_different_numbers_look_different(x: float, y: float) -> None:
    a, b = show_different(x, y)
    assert (a == b) == (x == y)


@pytest.mark.parametrize(
    ("x", "text"),
    [(0.1, "0.1"), (1234567.0, "1234567"), (1e300, "1e+300"), (math.inf, "inf"), (-math.inf, "-inf"), (math.nan, "nan"), (True, "True")],
)
def test_floats_have_few_digits(x: float, text: str) -> None:
    assert show_number(x) == text


def test_an_overflow_is_an_infinity_where_a_number_is_expected() -> None:
    x, w = torch.tensor([1.0, math.inf, math.inf]), torch.tensor([1.0, math.inf, 70000.0]).double()
    assert describe_overflow("Y", x, w) == "Y[2] is inf, an overflow on the way to float32, the specification gives 70000; 1 of 3 elements"
    assert describe_overflow("Y", x[:2], w[:2]) is None


LARGE = """
@kernel(arch="sm_90a")
def numbered(X: Global[f32, M], Y: Global[i32, M]):
    work = tiles(cdiv(M, 64))
    with role("all", warpgroups=1):
        for t in work:
            r = t * 64 + rows(64)
            store(Y[r], cast(X[r] * 0.0, i32) + 1234567)
"""


def test_a_wrong_integer_is_printed_whole() -> None:
    report = verify(parse(LARGE, "numbered.cuir"), lambda X: {"Y": (X * 0).int() + 1234568}, shrink=False, seeded=0)
    (result, *_) = [d for stage in report.stages for d in stage.diagnostics]
    assert result.code == "V301" and "is 1234567, the specification gives 1234568;" in result.message
