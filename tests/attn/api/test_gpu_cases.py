"""The cases of the GPU's backward tests, small and in the interpreter: that they ask what they say, and that a wrong gradient fails.

The cases of the GPU's dropout tests, small and in the interpreter: that they ask what they say, and that another mask fails.
"""

from __future__ import annotations

import pytest
import torch

from tests.gpu import backward_cases as cases
from tests.gpu import test_dropout as cases_of_dropout_cases


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    ("name", "dim", "dtype"),
    [
        ("ALiBi, causal", 128, "bfloat16"),
        ("documents, soft cap", 64, "float16"),
        ("more queries than keys", 40, "float16"),
        ("grouped heads", 192, "float32"),
        ("rows and columns without pairs", 64, "float32"),
    ],
)
def test_numbers(name: str, dim: int, dtype: str) -> None:
    cases.numbers("cpu", name, 60, dim, dtype)


@pytest.mark.parametrize(("dtype", "factor"), [("float16", 1.002), ("float32", 1.00001)])
def test_a_wrong_gradient_fails(dtype: str, factor: float) -> None:
    problem = cases.Problem("causal", "cpu", 40, 64, dtype)
    dq, dk, dv = problem.gradients()
    with pytest.raises(AssertionError, match="dK"):
        problem.judge((dq, dk * factor, dv))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_some(dtype: str) -> None:
    cases.some("cpu", "grouped heads", 60, 64, "k", dtype)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_deterministic(dtype: str) -> None:
    cases.deterministic("cpu", "rows and columns without pairs", 60, 64, dtype, 2)


def test_checkpointed() -> None:
    cases.checkpointed("cpu", 60, 64)


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    ("name", "dim", "dtype"),
    [("ALiBi, causal", 128, "bfloat16"), ("documents, soft cap", 64, "float16"), ("grouped heads", 192, "float32")],
)
def test_numbers_of_dropout_cases(name: str, dim: int, dtype: str) -> None:
    cases_of_dropout_cases.numbers("cpu", name, 60, dim, dtype)


def test_another_mask_fails() -> None:
    problem = cases_of_dropout_cases.Dropped("causal", "cpu", 40, 64, "float16")
    result = problem.outputs()
    problem.compare(result)
    problem.seed = problem.seed + torch.tensor([0, 1], dtype=torch.int32)
    with pytest.raises(AssertionError, match="'O'"):
        problem.compare(result)


def test_deterministic_of_dropout_cases() -> None:
    cases_of_dropout_cases.deterministic("cpu", "causal", 60, 64, "float16", 2)


def test_repeated() -> None:
    cases_of_dropout_cases.repeat_calls("cpu", "documents", 40, 64, "float32")


def test_seeds_are_drawn() -> None:
    cases_of_dropout_cases.draw_seeds("cpu", 40, 64)


def test_compiled() -> None:
    cases_of_dropout_cases.run_compiled("cpu", 40, 64, "aot_eager")
