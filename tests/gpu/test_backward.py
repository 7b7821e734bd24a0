"""The backward pass on a GPU: numbers, the same bits every time, torch.compile, CUDA graphs, activation checkpointing, memory.

Gradients of parameters that begin at 0, on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from cuir import flex_attention
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


F = torch.nn.functional
FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "logsigmoid": F.logsigmoid,
    "elu": F.elu,
    "celu": F.celu,
    "selu": F.selu,
    "asinh": torch.asinh,
    "atanh": torch.atanh,
    "atan2": lambda p: torch.atan2(p, torch.ones_like(p)),
    "logaddexp": lambda p: torch.logaddexp(p, p * 2.0),
    "clamp": lambda p: p.clamp(0.0, 1.0),
    "maximum": lambda p: torch.maximum(p, torch.zeros_like(p)),
    "minimum": lambda p: torch.minimum(p, -p * 2.0),
    "leaky_relu": lambda p: F.leaky_relu(p, 0.2),
    "half precision": lambda p: F.logsigmoid(p.half()).float(),
}


def compute_reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, score_mod: Callable[..., Any]) -> torch.Tensor:
    places = [
        torch.arange(n, device=q.device).view([-1 if i == d else 1 for i in range(4)]) for d, n in enumerate((*q.shape[:3], k.shape[2]))
    ]
    return score_mod(q @ k.mT / q.shape[3] ** 0.5, *places).softmax(-1) @ v


def close(result: torch.Tensor, exact: torch.Tensor, bound: float = 1e-3) -> bool:
    return bool((result - exact).norm() <= bound * exact.norm()) and bool(exact.norm() > 1e-3)


def begin_at_0(device: str, name: str, dtype: str, length: int) -> None:
    """A parameter of each head and one of each query have the gradients of the dense formula in float64."""
    f, g = FUNCTIONS[name], torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, length, 64, generator=g).to(device, getattr(torch, dtype)).unbind()
    heads, rows = torch.zeros(2, device=device, requires_grad=True), torch.zeros(length, device=device, requires_grad=True)

    def mod(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return s + f(heads[h]) * (i - j) / 64 + f(rows[i]) * (j / length)

    ours = [x.clone().requires_grad_() for x in (q, k, v)]  # dQ, dK and dV are asked as well
    o = flex_attention(*ours, score_mod=mod, backend="interpret" if device == "cpu" else "auto", verify="off")
    result = torch.autograd.grad((o * q).float().sum(), (heads, rows, *ours))[:2]
    exact = torch.autograd.grad((compute_reference(q.double(), k.double(), v.double(), mod) * q).sum(), (heads, rows))
    for x, y in zip(result, exact, strict=True):
        assert close(x, y, 0.02), (name, x, y)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_begin_at_0(name: str, dtype: str) -> None:
    run_isolated(begin_at_0, "cuda", name, dtype, 300, seconds=300)
