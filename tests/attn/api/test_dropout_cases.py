"""The cases of the GPU's dropout tests, small and in the interpreter: that they ask what they say, and that another mask fails."""

from __future__ import annotations

import pytest
import torch

from tests.gpu import test_dropout as cases


@pytest.mark.parametrize(
    ("name", "dim", "dtype"),
    [("ALiBi, causal", 128, "bfloat16"), ("documents, soft cap", 64, "float16"), ("grouped heads", 192, "float32")],
)
def test_numbers(name: str, dim: int, dtype: str) -> None:
    cases.numbers("cpu", name, 60, dim, dtype)


def test_another_mask_fails() -> None:
    problem = cases.Dropped("causal", "cpu", 40, 64, "float16")
    result = problem.outputs()
    problem.compare(result)
    problem.seed = problem.seed + torch.tensor([0, 1], dtype=torch.int32)
    with pytest.raises(AssertionError, match="'O'"):
        problem.compare(result)


def test_deterministic() -> None:
    cases.deterministic("cpu", "causal", 60, 64, "float16", 2)


def test_repeated() -> None:
    cases.repeat_calls("cpu", "documents", 40, 64, "float32")


def test_seeds_are_drawn() -> None:
    cases.draw_seeds("cpu", 40, 64)


def test_compiled() -> None:
    cases.run_compiled("cpu", 40, 64, "aot_eager")
