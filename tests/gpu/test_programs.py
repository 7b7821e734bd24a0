"""Every program of the corpus on a GPU against float64 and against the interpreter."""

from __future__ import annotations

import pytest

import corpus
from tests.gpu import program_cases
from tests.gpu.isolation import isolated


def test_every_program_has_problems() -> None:
    assert set(program_cases.PROGRAMS) == set(corpus.programs())


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("name", sorted(program_cases.PROGRAMS))
def test_program(name: str, dtype: str) -> None:
    isolated(program_cases.right, name, dtype, seconds=200)
