"""A lifted kernel beside its source: the comparison, with functions in the places of both kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import corpus
from llm.source_comparison import compare_problem

SPEC = corpus.variant("causal")()


def kernel(change: Callable[[torch.Tensor, torch.Tensor], Any] = lambda o, lse: None) -> Callable[..., None]:
    """Computes the specification in half precision, then changes O and LSE in place."""

    def run(Q: torch.Tensor, K: torch.Tensor, V: torch.Tensor, O: torch.Tensor, LSE: torch.Tensor, scale: float) -> None:
        o, lse = SPEC.half(Q, K, V, scale)
        O.copy_(o)
        LSE.copy_(lse)
        change(O, LSE)

    return run


SHAPES = [(1, 2, 1, 40, 60), (1, 2, 2, 60, 20), (1, 2, 2, 8, 0), (1, 2, 2, 1, 33)]


@pytest.mark.parametrize("shape", SHAPES)
def test_equal_kernels_agree(shape: tuple[int, int, int, int, int]) -> None:
    assert compare_problem(kernel(), kernel(), SPEC, shape, 64, "cpu")["ok"]


@pytest.mark.parametrize(
    "change",
    [
        lambda o, lse: o.mul_(1.02),
        lambda o, lse: lse.add_(0.01),
        lambda o, lse: o[..., -1, 0].fill_(torch.nan),
        lambda o, lse: lse[..., 0].fill_(0.0),
        lambda o, lse: o[0, 0, -1].zero_(),
    ],
)
def test_what_differs_is_told(change: Callable[[torch.Tensor, torch.Tensor], Any]) -> None:
    assert not compare_problem(kernel(change), kernel(), SPEC, (1, 2, 2, 60, 20), 64, "cpu")["ok"]
