"""The backward pass on a GPU: numbers, the same bits every time, torch.compile, CUDA graphs, activation checkpointing, memory."""

from __future__ import annotations

import pytest

from tests.gpu import backward_cases as cases
from tests.gpu.isolation import run_isolated

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("name", cases.PROBLEMS)
def test_numbers(name: str, dim: int, dtype: str) -> None:
    run_isolated(cases.numbers, "cuda", name, 700, dim, dtype, seconds=300)


@pytest.mark.parametrize(("name", "length", "dim"), [("grouped heads", 1100, 128), ("ALiBi, causal", 2100, 64)])
def test_heads_of_a_group_are_shared_out(name: str, length: int, dim: int) -> None:
    run_isolated(cases.numbers, "cuda", name, length, dim, "float16", seconds=300)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("dim", [40, 80, 96, 121, 192, 256])
def test_other_head_dims(dim: int, dtype: str) -> None:
    run_isolated(cases.numbers, "cuda", "ALiBi, causal", 300, dim, dtype, seconds=300)


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("requests", ["q", "kv", "k"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_some(requests: str, dim: int, dtype: str) -> None:
    run_isolated(cases.some, "cuda", "documents, soft cap", 2000, dim, requests, dtype, seconds=300)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("name", ["full", "causal", "grouped heads", "documents, soft cap", "rows and columns without pairs"])
def test_deterministic(name: str, dim: int, dtype: str) -> None:
    run_isolated(cases.deterministic, "cuda", name, 2000, dim, dtype, 20, seconds=300)


@pytest.mark.parametrize("dim", [64, 128])
def test_checkpointed(dim: int) -> None:
    run_isolated(cases.checkpointed, "cuda", 700, dim, seconds=300)


@pytest.mark.parametrize("dim", [64, 128])
def test_compiled(dim: int) -> None:
    run_isolated(cases.compiled, "cuda", 700, dim, "inductor", seconds=300)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("dim", [64, 128])
def test_in_a_cuda_graph(dim: int, dtype: str) -> None:
    run_isolated(cases.captured, 700, dim, dtype, seconds=300)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("dim", [64, 128])
def test_memory(dim: int, dtype: str) -> None:
    run_isolated(cases.memory, 4096, dim, dtype, seconds=300)


@pytest.mark.parametrize("name", ["causal", "documents, soft cap"])
def test_repeated_passes(name: str) -> None:
    run_isolated(cases.repeated, name, 700, 64, seconds=300)
