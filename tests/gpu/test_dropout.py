"""Dropout of attention weights on a GPU: outputs and gradients beside the replayed mask in float64, seeds, torch.compile, CUDA graphs."""

from __future__ import annotations

import pytest

from tests.gpu import backward_cases, dropout_cases
from tests.gpu.isolation import isolated

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("name", backward_cases.PROBLEMS)
def test_numbers(name: str, dim: int, dtype: str) -> None:
    isolated(dropout_cases.numbers, "cuda", name, 700, dim, dtype, seconds=300)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("dim", [40, 96, 192, 256])
def test_other_head_dims(dim: int, dtype: str) -> None:
    isolated(dropout_cases.numbers, "cuda", "ALiBi, causal", 300, dim, dtype, seconds=300)


@pytest.mark.parametrize("p", [0.001, 0.5, 0.95])
def test_probabilities(p: float) -> None:
    isolated(dropout_cases.numbers, "cuda", "grouped heads", 700, 64, "bfloat16", p, seconds=300)


@pytest.mark.parametrize(("name", "length", "dim"), [("grouped heads", 1100, 128), ("ALiBi, causal", 2100, 64)])
def test_heads_of_a_group_are_shared_out(name: str, length: int, dim: int) -> None:
    isolated(dropout_cases.numbers, "cuda", name, length, dim, "float16", seconds=300)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("name", ["causal", "documents, soft cap"])
def test_deterministic(name: str, dim: int, dtype: str) -> None:
    isolated(dropout_cases.deterministic, "cuda", name, 2000, dim, dtype, 10, seconds=300)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("name", ["full", "documents"])
def test_repeated(name: str, dtype: str) -> None:
    isolated(dropout_cases.repeated, "cuda", name, 700, 64, dtype, seconds=300)


@pytest.mark.parametrize("dim", [64, 128])
def test_seeds_are_drawn(dim: int) -> None:
    isolated(dropout_cases.drawn, "cuda", 700, dim, seconds=300)


@pytest.mark.parametrize("dim", [64, 128])
def test_compiled(dim: int) -> None:
    isolated(dropout_cases.compiled, "cuda", 700, dim, "inductor", seconds=300)


@pytest.mark.parametrize("dim", [64, 128])
def test_in_a_cuda_graph(dim: int) -> None:
    isolated(dropout_cases.captured, 700, dim, seconds=300)


def test_masks_agree() -> None:
    isolated(dropout_cases.masks_agree, 500, seconds=120)


@pytest.mark.parametrize("length", [33000, 70000])
def test_far(length: int) -> None:
    isolated(dropout_cases.far, length, 64, seconds=300)
