"""The cases of the GPU's backward tests, small and in the interpreter: that they ask what they say, and that a wrong gradient fails."""

from __future__ import annotations

import pytest

from tests.gpu import backward_cases as cases


@pytest.mark.parametrize(
    ("name", "dim", "dtype"),
    [("ALiBi, causal", 128, "bfloat16"), ("documents, soft cap", 64, "float16"), ("more queries than keys", 40, "float16")],
)
def test_numbers(name: str, dim: int, dtype: str) -> None:
    cases.numbers("cpu", name, 60, dim, dtype)


def test_a_wrong_gradient_fails() -> None:
    problem = cases.Problem("causal", "cpu", 40, 64, "float16")
    dq, dk, dv = problem.gradients()
    with pytest.raises(AssertionError, match="dK"):
        problem.judge((dq, dk * 1.002, dv))


def test_some() -> None:
    cases.some("cpu", "grouped heads", 60, 64, "k")


def test_deterministic() -> None:
    cases.deterministic("cpu", "rows and columns without pairs", 60, 64, "float16", 2)


def test_checkpointed() -> None:
    cases.checkpointed("cpu", 60, 64)
