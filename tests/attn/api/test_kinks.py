"""Parameters that begin at 0, at a bound or at a tie train as they do behind PyTorch's own functions, and a projection of zeros has a gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from cuir import flex_attention
from tests.gpu.test_kinks import FUNCTIONS, begin_at_0, close, compute_reference

F = torch.nn.functional
N, D = 16, 32


def qkv(dtype: torch.dtype = torch.float32, heads: int = 1) -> list[torch.Tensor]:
    return list(torch.randn(3, 1, heads, N, D, generator=torch.Generator().manual_seed(0)).to(dtype).unbind())


def ours(*x: torch.Tensor, score_mod: Callable[..., Any]) -> Any:
    return flex_attention(*x, score_mod=score_mod, backend="interpret", verify="off")


@pytest.mark.sweep
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_parameter_that_begins_at_0(name: str) -> None:
    """One for all pairs, and one of a query, which are differentiated as scalars and as tiles."""
    f, (q, k, v) = FUNCTIONS[name], qkv()
    scalar, each = torch.zeros((), requires_grad=True), torch.zeros(N, requires_grad=True)

    def mod(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return s + f(scalar) * j + f(each[i]) * (i - j)

    result, exact = (torch.autograd.grad((call(q, k, v, score_mod=mod) * q).sum(), (scalar, each)) for call in (ours, compute_reference))
    assert close(result[0], exact[0]) and close(result[1], exact[1])


@pytest.mark.parametrize("name", ["logsigmoid", "asinh", "selu", "leaky_relu", "clamp", "maximum"])
def test_a_projection_of_zeros(name: str) -> None:
    """All scores are 0."""
    q, k, v = qkv()
    zero = torch.zeros_like(q).requires_grad_()
    mod = lambda s, b, h, i, j: FUNCTIONS[name](s)  # noqa: E731
    result, exact = (torch.autograd.grad((call(zero, k, v, score_mod=mod) * q).sum(), zero)[0] for call in (ours, compute_reference))
    assert close(result, exact, 1e-2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gates_of_zeros_in_half_precision(dtype: torch.dtype) -> None:
    gates = torch.zeros(2, N, requires_grad=True)
    mod = lambda s, b, h, i, j: s + F.logsigmoid(gates[h, j]) * (i - j)  # noqa: E731
    q, k, v = qkv(dtype, 2)
    (result,) = torch.autograd.grad((ours(q, k, v, score_mod=mod) * q).float().sum(), gates)
    (exact,) = torch.autograd.grad((compute_reference(q.float(), k.float(), v.float(), mod) * q).sum(), gates)
    assert close(result, exact, 0.02)


def test_gates_of_zeros_in_a_compiled_call() -> None:
    gates = torch.zeros(1, N, requires_grad=True)
    mod = lambda s, b, h, i, j: s + F.logsigmoid(gates[h, j]) * (i - j)  # noqa: E731
    q, k, v = qkv()
    compiled = torch.compile(ours, backend="aot_eager")
    result, exact = (torch.autograd.grad((call(q, k, v, score_mod=mod) * q).sum(), gates)[0] for call in (compiled, compute_reference))
    assert close(result, exact)


def test_the_norm_of_zeros() -> None:
    """A distance of a point to itself."""
    q, k, v = qkv()
    at = torch.randn(N, 3, generator=torch.Generator().manual_seed(1)).requires_grad_()
    (result,) = torch.autograd.grad(ours(q, k, v, score_mod=lambda s, b, h, i, j: s - (at[i] - at[j]).norm()).square().sum(), at)
    s = q @ k.mT / D**0.5 - (at[:, None] - at).norm(dim=-1)
    (exact,) = torch.autograd.grad((s.softmax(-1) @ v).square().sum(), at)
    assert close(result, exact)


@pytest.mark.parametrize("name", ["amax", "max"])
def test_ties_within_a_row(name: str) -> None:
    """Equal elements share the gradient of amax; with a place, as max(-1) gives it, the first one has it."""
    q, k, v = qkv()
    rows = torch.tensor([[1.0, 1.0, 0.0], [2.0, 2.0, 2.0]]).repeat(N // 2, 1).requires_grad_()
    of = (lambda r: r.amax(-1)) if name == "amax" else (lambda r: r.max(-1).values)
    (result,) = torch.autograd.grad((ours(q, k, v, score_mod=lambda s, b, h, i, j: s + of(rows[j])) * q).sum(), rows)
    (exact,) = torch.autograd.grad((compute_reference(q, k, v, lambda s, b, h, i, j: s + of(rows)) * q).sum(), rows)
    assert close(result, exact)


def test_the_case_of_a_gpu() -> None:
    begin_at_0("cpu", "logsigmoid", "float16", 40)
