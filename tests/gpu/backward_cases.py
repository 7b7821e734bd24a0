"""Properties of the backward pass on a device, one function each: `test_backward.py` runs them on a GPU in processes of their own, `tests/attn/api/test_gpu_cases.py` in the interpreter."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from cuir import Specification, create_block_mask, flex_attention
from cuir.spec.gradients import forward
from tests.gpu.determinism import run_deterministically

Mod = Callable[..., Any]
# of the error that PyTorch has in that dtype; of the gradient's norm
BOUNDS = {torch.float16: (1.5, 2e-5), torch.bfloat16: (1.5, 2e-5), torch.float32: (2.0, 1e-6)}


# ---- mods
def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


def late(b: Any, h: Any, q: Any, k: Any) -> Any:
    """The first queries have no keys, and the last keys no queries."""
    return q >= k + 20


def softcap(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return 5.0 * torch.tanh(s / 5.0)


def documents(device: str, n: int) -> Mod:
    ids = torch.arange(n, device=device) // 37
    return lambda b, h, q, k: (ids[q] == ids[k]) & (q >= k)


def alibi(device: str, heads: int) -> Mod:
    slopes = 2.0 ** -torch.arange(1.0, heads + 1, device=device)
    return lambda s, b, h, q, k: s + slopes[h] * (k - q)


PROBLEMS = {  # heads, key heads, queries, keys; with the mask and the score of them
    "full": (2, 2, 1.0, 1.0, None, None),
    "causal": (2, 2, 1.0, 1.0, causal, None),
    "grouped heads": (4, 1, 1.0, 1.0, causal, None),
    "fewer queries than keys": (2, 1, 0.53, 1.31, None, None),
    "more queries than keys": (2, 1, 1.17, 0.61, causal, None),
    "rows and columns without pairs": (2, 2, 1.0, 1.0, late, None),
    "documents": (2, 2, 1.0, 1.0, documents, None),
    "soft cap": (2, 2, 1.0, 1.0, None, softcap),
    "ALiBi, causal": (4, 2, 1.0, 1.0, causal, alibi),
    "documents, soft cap": (2, 2, 1.0, 1.0, documents, softcap),
}


class Problem:
    """Inputs and mods of a problem of about `length` queries and keys."""

    def __init__(self, name: str, device: str, length: int, dim: int, dtype: str, batch: int = 2):
        H, HK, m, n, mask, score = PROBLEMS[name]
        M, N = round(m * length), round(n * length)
        g = torch.Generator(device).manual_seed(length + dim)
        self.device, self.scale = device, dim**-0.5
        self.inputs = [
            torch.randn(batch, h, s, dim, generator=g, device=device).to(getattr(torch, dtype)) for h, s in ((H, M), (HK, N), (HK, N))
        ]
        self.do = torch.randn(batch, H, M, dim, generator=g, device=device).to(getattr(torch, dtype))
        self.mask: Mod | None = mask(device, max(M, N)) if mask is documents else mask
        self.score: Mod | None = score(device, H) if score is alibi else score
        self.block_mask = create_block_mask(self.mask, None, None, M, N, device=device) if self.mask is not None else None
        self.options = {"enable_gqa": H != HK, "backend": "auto" if device == "cuda" else "interpret", "verify": "off"}

    def leaves(self, requests: str = "qkv") -> list[torch.Tensor]:
        return [x.detach().clone().requires_grad_(n in requests) for n, x in zip("qkv", self.inputs, strict=True)]

    def call(self, *inputs: torch.Tensor) -> torch.Tensor:
        return flex_attention(*inputs, self.score, self.block_mask, **self.options)  # type: ignore[arg-type, return-value]

    def gradients(self, requests: str = "qkv") -> tuple[torch.Tensor, ...]:
        leaves = self.leaves(requests)
        return torch.autograd.grad(self.call(*leaves), [x for x in leaves if x.requires_grad], self.do)

    def compute_reference(self, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        """Return the gradients of the formula in PyTorch, in float64 or in the dtype of the inputs."""
        leaves = [x.detach().to(dtype).requires_grad_() for x in self.inputs]
        o, _ = forward(Specification("wanted", self.mask, self.score), *leaves, self.scale)
        return torch.autograd.grad(o, leaves, self.do.to(o.dtype))

    def judge(self, actual: tuple[torch.Tensor, ...], requests: str = "qkv") -> None:
        """Against float64, beside the error that PyTorch has in the dtype of the inputs."""
        ratio, slack = BOUNDS[self.do.dtype]
        expected = zip(("dQ", "dK", "dV"), self.compute_reference(torch.float64), self.compute_reference(self.do.dtype), strict=True)
        for x, (name, exact, half) in zip(actual, (w for n, w in zip("qkv", expected, strict=True) if n in requests), strict=True):
            error, allowed = (float((y.double() - exact).norm()) for y in (x, half))
            assert x.shape == exact.shape and error <= ratio * allowed + slack * float(exact.norm()), (name, error, allowed)


# ---- what is promised
def numbers(device: str, name: str, length: int, dim: int, dtype: str) -> None:
    """Gradients beside float64."""
    problem = Problem(name, device, length, dim, dtype)
    problem.judge(problem.gradients())


def some(device: str, name: str, length: int, dim: int, requests: str, dtype: str = "float16") -> None:
    """Gradients of these inputs alone beside float64; asked: letters of q, k, v. On a GPU that of Q alone takes no other tensor of its size."""
    problem = Problem(name, device, length, dim, dtype)
    result = problem.gradients(requests)
    problem.judge(result, requests)
    if device == "cuda" and requests == "q":
        leaves = problem.leaves(requests)
        o = problem.call(*leaves)
        selected = measure_memory(lambda: torch.autograd.grad(o, leaves[0], problem.do))
        rows = -(-length // 128) * 128 * problem.do.shape[0] * problem.do.shape[1]
        assert selected <= problem.do.nbytes + 8 * rows + 2**17, selected


def deterministic(device: str, name: str, length: int, dim: int, dtype: str, times: int = 3) -> None:
    """Right, and the same bits every time."""
    problem = Problem(name, device, length, dim, dtype)
    problem.judge(run_deterministically(problem.gradients, times))


def checkpointed(device: str, length: int, dim: int) -> None:
    """The same gradients where the forward pass runs again inside of the backward pass; on a GPU up to the order in which dQ is added up."""
    problem = Problem("documents, soft cap", device, length, dim, "float16")
    expected = problem.gradients()
    for reentrant in (False, True):
        leaves = problem.leaves()
        o = checkpoint(problem.call, *leaves, use_reentrant=reentrant)
        alike(torch.autograd.grad(o, leaves, problem.do) if not reentrant else backward(o, leaves, problem.do), expected)


def compiled(device: str, length: int, dim: int, compiler: str) -> None:
    """The same gradients under torch.compile, without a graph break."""
    problem = Problem("documents, soft cap", device, length, dim, "float16")
    leaves = problem.leaves()

    @functools.partial(torch.compile, fullgraph=True, backend=compiler)
    def loss(*leaves: torch.Tensor) -> torch.Tensor:
        return (problem.call(*(x * 1.0 for x in leaves)) * problem.do).sum()

    alike(torch.autograd.grad(loss(*leaves), leaves), problem.gradients())


def captured(length: int, dim: int, dtype: str = "float16") -> None:
    """A CUDA graph of a call and its backward, replayed on other data."""
    problem = Problem("documents, soft cap", "cuda", length, dim, dtype)
    leaves = problem.leaves()

    def step() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(problem.call(*leaves), leaves, problem.do)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step()
    with torch.no_grad():
        for x in (*leaves, problem.do):
            x.copy_(x.roll(1, 2))
    problem.inputs = [x.detach().clone() for x in leaves]
    graph.replay()
    alike(result, problem.gradients())


def repeated(name: str, length: int, dim: int, dtype: str = "float16") -> None:
    """Passes behind the first repeat its launches, right for the tensors of each; those that lie otherwise are made anew."""
    from cuir.attn.kernels.autograd import Gradients

    problem, calls, of = Problem(name, "cuda", length, dim, dtype), [], Gradients.of
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Gradients, "of", lambda self, *a, **k: (calls.append(self), of(self, *a, **k))[1])
        for turn in range(5):
            problem.do = torch.randn_like(problem.do)
            if turn == 3:
                problem.do = problem.do.transpose(1, 2).contiguous().transpose(1, 2)
            problem.judge(problem.gradients())
            assert len(calls) == (1 if turn < 3 else 2), (turn, len(calls))


def memory(length: int, dim: int, dtype: str = "float16") -> None:
    """A backward call takes two f32 numbers a query and the gradients, of halves also dQ in f32, and nothing of queries times keys."""
    problem = Problem("documents, soft cap", "cuda", length, dim, dtype)
    problem.gradients()  # prepares kernels and lists
    leaves = problem.leaves()
    o = problem.call(*leaves)
    selected, queries = measure_memory(lambda: torch.autograd.grad(o, leaves, problem.do)), problem.do.numel()
    padded = -(-length // 128) * 128 * problem.do.shape[0] * problem.do.shape[1]
    sums = 0 if dtype == "float32" else 4 * queries
    bound = sums + 2 * 4 * padded + sum(x.nbytes for x in leaves) + 2**20
    assert selected <= bound, (selected, bound)


def measure_memory(call: Callable[[], object]) -> int:
    """The most bytes that a call has at a time beside what was there: those asked for, since the blocks that PyTorch gives depend on which it has at hand."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    retained = call()
    selected: int = torch.cuda.memory_stats()["requested_bytes.all.peak"] - before
    del retained
    return selected


def backward(o: torch.Tensor, leaves: list[torch.Tensor], do: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Compute gradients where they are accumulated, as reentrant checkpointing needs."""
    o.backward(do)
    return tuple(x.grad for x in leaves if x.grad is not None)


def alike(actual: tuple[torch.Tensor, ...], expected: tuple[torch.Tensor, ...]) -> None:
    """dQ up to the order of its additions, dK and dV bit for bit."""
    assert len(actual) == 3
    torch.testing.assert_close(actual[0], expected[0], atol=2e-3, rtol=2e-3)
    assert torch.equal(actual[1], expected[1]) and torch.equal(actual[2], expected[2])
