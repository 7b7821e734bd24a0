"""Dropout of attention weights on a GPU: outputs and gradients beside the replayed mask in float64, seeds, torch.compile, CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from cuir import Dropout, Specification, draw_dropout_seed, dropout_mask, flex_attention
from cuir.spec.gradients import forward
from tests.gpu import backward_cases
from tests.gpu.backward_cases import BOUNDS, Problem
from tests.gpu.determinism import run_deterministically
from tests.gpu.isolation import run_isolated

pytestmark = pytest.mark.gpu

P = 0.2


class Dropped(Problem):
    """A problem whose weights are dropped by a seed of its own."""

    def __init__(self, name: str, device: str, length: int, dim: int, dtype: str, p: float = P):
        super().__init__(name, device, length, dim, dtype)
        self.p = p
        torch.manual_seed(length)
        self.seed = draw_dropout_seed(device)

    def call(self, *inputs: torch.Tensor) -> torch.Tensor:
        o = flex_attention(*inputs, self.score, self.block_mask, dropout_p=self.p, dropout_seed=self.seed, **self.options)
        assert isinstance(o, torch.Tensor)
        return o

    def outputs(self) -> tuple[torch.Tensor, ...]:
        """O and gradients."""
        leaves = self.leaves()
        o = self.call(*leaves)
        return o.detach(), *torch.autograd.grad(o, leaves, self.do)

    def replay(self, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        """Compute results of the formula in PyTorch with the mask of the seed."""
        leaves = [x.detach().to(dtype).requires_grad_() for x in self.inputs]
        spec = Specification("wanted", self.mask, self.score, dropout=Dropout(self.p, self.seed))
        o, _ = forward(spec, *leaves, self.scale)
        return o.detach(), *torch.autograd.grad(o, leaves, self.do.to(o.dtype))

    def compare(self, result: tuple[torch.Tensor, ...]) -> None:
        """Against float64, beside the error that PyTorch has in the dtype of the inputs."""
        ratio, slack = BOUNDS[self.do.dtype]
        for name, x, exact, half in zip(
            ("O", "dQ", "dK", "dV"), result, self.replay(torch.float64), self.replay(self.do.dtype), strict=True
        ):
            error, allowed = (float((y.double() - exact).norm()) for y in (x, half))
            assert error <= ratio * allowed + slack * float(exact.norm()), (name, error, allowed)


def numbers(device: str, name: str, length: int, dim: int, dtype: str, p: float = P) -> None:
    """O and gradients beside float64 with the replayed mask."""
    problem = Dropped(name, device, length, dim, dtype, p)
    problem.compare(problem.outputs())


def deterministic(device: str, name: str, length: int, dim: int, dtype: str, times: int) -> None:
    """Right, and the same bits every time."""
    problem = Dropped(name, device, length, dim, dtype)
    problem.compare(run_deterministically(problem.outputs, times))


def repeat_calls(device: str, name: str, length: int, dim: int, dtype: str) -> None:
    """Calls behind the first one, with other seeds and probabilities in turns, are right for their own."""
    problem = Dropped(name, device, length, dim, dtype)
    for turn in range(6):
        problem.p, problem.seed = (0.1, 0.4)[turn // 2 % 2], draw_dropout_seed(device)
        problem.do = torch.randn_like(problem.do)
        problem.compare(problem.outputs())


def draw_seeds(device: str, length: int, dim: int) -> None:
    """Seeds come of the device's default generator, and checkpointing draws them again."""
    problem = Dropped("causal", device, length, dim, "float16")

    def attend(*inputs: torch.Tensor) -> torch.Tensor:
        o = flex_attention(*inputs, problem.score, problem.block_mask, dropout_p=0.5, **problem.options)
        assert isinstance(o, torch.Tensor)
        return o

    calls: tuple[Callable[..., Any], ...] = (attend, attend, lambda *qkv: checkpoint(attend, *qkv, use_reentrant=False))
    torch.manual_seed(1)
    problem.p, problem.seed = 0.5, draw_dropout_seed(device)
    for run in calls:
        torch.manual_seed(1)
        leaves = problem.leaves()
        o = run(*leaves)
        problem.compare((o.detach(), *torch.autograd.grad(o, leaves, problem.do)))


def run_compiled(device: str, length: int, dim: int, compiler: str) -> None:
    """Right under torch.compile, with a seed that is drawn outside of the graph, and different in two calls whose graph draws it."""
    problem = Dropped("documents, soft cap", device, length, dim, "float16")

    def attend(seed: torch.Tensor | None, *inputs: torch.Tensor) -> torch.Tensor:
        o = flex_attention(*(x * 1.0 for x in inputs), problem.score, problem.block_mask, dropout_p=P, dropout_seed=seed, **problem.options)
        assert isinstance(o, torch.Tensor)
        return o

    graph = torch.compile(attend, fullgraph=True, backend=compiler)
    leaves = problem.leaves()
    o = graph(problem.seed, *leaves)
    problem.compare((o.detach(), *torch.autograd.grad(o, leaves, problem.do)))
    assert not torch.equal(graph(None, *leaves), graph(None, *leaves))


def run_captured(length: int, dim: int) -> None:
    """Each replay of a CUDA graph draws another seed, and its backward pass drops what its forward pass dropped."""
    problem = Dropped("causal", "cuda", length, dim, "float16", 0.5)
    leaves = problem.leaves()

    def step() -> tuple[torch.Tensor, ...]:
        seed = draw_dropout_seed("cuda")
        o = flex_attention(*leaves, problem.score, problem.block_mask, dropout_p=0.5, dropout_seed=seed, **problem.options)
        assert isinstance(o, torch.Tensor)
        return seed, o.detach(), *torch.autograd.grad(o, leaves, problem.do)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step()
    seeds = []
    for _ in range(3):
        graph.replay()
        problem.seed = result[0].clone()
        problem.compare(tuple(x.clone() for x in result[1:]))
        seeds.append(tuple(problem.seed.tolist()))
    assert len(set(seeds)) == 3


def masks_agree(length: int) -> None:
    """The mask is the same on a CPU and a GPU."""
    seed = draw_dropout_seed("cuda")
    assert torch.equal(dropout_mask(seed, 0.3, 2, 3, length, length).cpu(), dropout_mask(seed.cpu(), 0.3, 2, 3, length, length))


def far(length: int, dim: int) -> None:
    """The last queries of a long sequence: places of the mask beyond 16 bits."""
    g = torch.Generator("cuda").manual_seed(0)
    q, k, v = (torch.randn(1, 1, length, dim, generator=g, device="cuda").half() for _ in range(3))
    seed = draw_dropout_seed("cuda")
    o = flex_attention(q, k, v, dropout_p=0.5, dropout_seed=seed, verify="off")
    assert isinstance(o, torch.Tensor)
    first = length - 64
    mask = dropout_mask(seed, 0.5, 1, 1, 64, length, query_start=first)
    expected = ((q[:, :, first:].double() @ k.double().mT * dim**-0.5).softmax(-1) * mask * 2) @ v.double()
    error = float((o[:, :, first:].double() - expected).norm() / expected.norm())
    assert error < 2e-3, error


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("name", backward_cases.PROBLEMS)
def test_numbers(name: str, dim: int, dtype: str) -> None:
    run_isolated(numbers, "cuda", name, 700, dim, dtype, seconds=300)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("dim", [40, 96, 192, 256])
def test_other_head_dims(dim: int, dtype: str) -> None:
    run_isolated(numbers, "cuda", "ALiBi, causal", 300, dim, dtype, seconds=300)


@pytest.mark.parametrize("p", [0.001, 0.5, 0.95])
def test_probabilities(p: float) -> None:
    run_isolated(numbers, "cuda", "grouped heads", 700, 64, "bfloat16", p, seconds=300)


@pytest.mark.parametrize(("name", "length", "dim"), [("grouped heads", 1100, 128), ("ALiBi, causal", 2100, 64)])
def test_heads_of_a_group_are_shared_out(name: str, length: int, dim: int) -> None:
    run_isolated(numbers, "cuda", name, length, dim, "float16", seconds=300)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("name", ["causal", "documents, soft cap"])
def test_deterministic(name: str, dim: int, dtype: str) -> None:
    run_isolated(deterministic, "cuda", name, 2000, dim, dtype, 10, seconds=300)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("name", ["full", "documents"])
def test_repeated(name: str, dtype: str) -> None:
    run_isolated(repeat_calls, "cuda", name, 700, 64, dtype, seconds=300)


@pytest.mark.parametrize("dim", [64, 128])
def test_seeds_are_drawn(dim: int) -> None:
    run_isolated(draw_seeds, "cuda", 700, dim, seconds=300)


@pytest.mark.parametrize("dim", [64, 128])
def test_compiled(dim: int) -> None:
    run_isolated(run_compiled, "cuda", 700, dim, "inductor", seconds=300)


@pytest.mark.parametrize("dim", [64, 128])
def test_in_a_cuda_graph(dim: int) -> None:
    run_isolated(run_captured, 700, dim, seconds=300)


def test_masks_agree() -> None:
    run_isolated(masks_agree, 500, seconds=120)


@pytest.mark.parametrize("length", [33000, 70000])
def test_far(length: int) -> None:
    run_isolated(far, length, 64, seconds=300)
