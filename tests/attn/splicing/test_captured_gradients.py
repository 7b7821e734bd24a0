"""A learned tensor has a gradient exactly where PyTorch gives one: zeros where the derivative is 0 everywhere, None where no path leads to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import cuir
from cuir.attn.splicing.captured_gradients import collect_gradient_paths
from cuir.attn.tracing.trace import trace
from cuir.spec.specification import Specification

ZERO = 0.0
WITH_ZEROS: dict[str, Callable[[Any], Any]] = {
    "times a captured 0": lambda p: ZERO * p,
    "round": lambda p: torch.round(p),
    "floor": lambda p: p.floor(),
    "sign": lambda p: torch.sign(p),
    "a choice": lambda p: torch.where(p > 100.0, torch.sign(p), 0.0),
    "the smaller one": lambda p: torch.minimum(p.round(), p.ceil()),
    "half": lambda p: p.half().float().round(),
}
WITHOUT: dict[str, Callable[[Any], Any]] = {
    "a condition": lambda p: torch.where(p > 0.0, 1.0, 2.0),
    "detach": lambda p: p.detach() * 2.0,
    "an integer": lambda p: p.int().float(),
    "a comparison": lambda p: (p < 3.0).float(),
}
CASES = [*((n, f, True) for n, f in WITH_ZEROS.items()), *((n, f, False) for n, f in WITHOUT.items())]


@pytest.mark.parametrize(("f", "path"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_paths_are_those_of_autograd(f: Callable[[Any], Any], path: bool) -> None:
    learned = torch.ones(2, requires_grad=True)
    assert f(learned[0]).requires_grad == path, "the table is PyTorch's"
    traced = trace(Specification("a score", score_mod=lambda score, b, h, q_idx, kv_idx: score + f(learned[h]) * kv_idx))
    assert (len(collect_gradient_paths(traced.differentiated[0])) == 1) == path


@pytest.mark.parametrize(("f", "path"), [(WITH_ZEROS["times a captured 0"], True), (WITHOUT["a condition"], False)], ids=["zeros", "none"])
def test_backward_gives_zeros_or_none(f: Callable[[Any], Any], path: bool) -> None:
    learned = torch.ones(2, requires_grad=True)
    q, k, v = (torch.randn(1, 2, 16, 16, requires_grad=True) for _ in range(3))

    def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score + f(learned[h]) * kv_idx

    cuir.flex_attention(q, k, v, score_mod=score_mod, backend="interpret", verify="off").sum().backward()
    assert q.grad is not None
    assert (learned.grad is not None and torch.equal(learned.grad, torch.zeros(2))) if path else learned.grad is None
