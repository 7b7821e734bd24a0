"""The expert CUDA sources of the corpus: they compile without a warning; on a GPU they are right, and what models lifted from them gives the same."""

from __future__ import annotations

import pytest

import corpus
from llm.expert_source import compile_source, read_expert_source
from tests.gpu import cuda_source_cases
from tests.gpu.isolation import isolated

SPEED = {"flash_fwd_sm80": 100, "flash_fwd_sm90": 250}  # TFLOP/s at 8k, D 128: half of what such kernels reach


def test_every_source_has_a_launch_description() -> None:
    assert set(corpus.cuda()) == set(SPEED)
    for name in corpus.cuda():
        source = read_expert_source(corpus.launch_of(name))
        assert source.path.is_file() and source.spec in corpus.variants()


@pytest.mark.nvcc
@pytest.mark.parametrize("name", sorted(SPEED))
def test_source_compiles_without_a_warning(name: str) -> None:
    image, said = compile_source(read_expert_source(corpus.launch_of(name)), 64)
    assert len(image) > 1000 and not said


@pytest.mark.gpu
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("name", sorted(SPEED))
def test_source_is_right(name: str, dim: int) -> None:
    isolated(cuda_source_cases.right, name, dim, seconds=240)


@pytest.mark.gpu
@pytest.mark.parametrize("name", sorted(SPEED))
def test_source_is_an_experts(name: str) -> None:
    assert isolated(cuda_source_cases.fast, name, 128, seconds=120) >= SPEED[name]


@pytest.mark.gpu
@pytest.mark.parametrize("name", sorted(SPEED))
def test_what_was_lifted_agrees_with_its_source(name: str) -> None:
    isolated(cuda_source_cases.beside, name, seconds=240)


@pytest.mark.gpu
def test_a_lift_that_disagrees_with_its_source_is_told() -> None:
    assert isolated(cuda_source_cases.told_apart, "flash_fwd_sm90", seconds=240) >= 3


@pytest.mark.parametrize("name", sorted(SPEED))
def test_a_lift_of_every_source_is_on_record(name: str) -> None:
    assert cuda_source_cases.lifted_program(name).kernels()
