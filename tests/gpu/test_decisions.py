"""Functions that jump give PyTorch's whole numbers: in the interpreter, and on a GPU. `python -m pytest tests/gpu/test_decisions.py -q -m gpu`."""

from __future__ import annotations

import pytest

from tests.gpu import decision_cases
from tests.gpu.isolation import isolated

KINDS = ("pairs", "steps", "random")


@pytest.mark.parametrize("kind", KINDS)
def test_the_interpreter_gives_the_bits_of_float32(kind: str) -> None:
    assert decision_cases.by_interpreter(kind, 128) == []


def test_wrong_bits_are_found() -> None:
    import torch

    given = decision_cases.inputs("pairs", 64)
    approximate = given["X"] * (1 / given["Z"])
    found = torch.stack([case.wanted({**given, **decision_cases.SCALARS}) for case in decision_cases.CASES])
    found[0] = approximate.floor()
    (said,) = decision_cases.wrong(given, found)
    assert "floor(x / z)" in said


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_the_gpu_gives_the_bits_of_float32(kind: str) -> None:
    assert isolated(decision_cases.on_gpu, kind, seconds=300.0) == []


@pytest.mark.gpu
def test_mods_that_jump() -> None:
    assert isolated(decision_cases.mods_on_gpu, seconds=300.0) == []
