"""Mods that draw random numbers, and mods that convert to half precision."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from cuir.attn.tracing.mod_evaluator import evaluate
from cuir.attn.tracing.trace import trace
from cuir.spec.specification import Specification
from cuir.syntax.printer import show
from cuir.text.diagnostics import CuirError

Mod = Callable[..., Any]
GENERATOR = torch.Generator()

DRAWING: list[Mod] = [
    lambda b, h, q, k: (q >= k) & (torch.rand(()) > 0.5),
    lambda b, h, q, k: (q >= k) & (torch.rand((), generator=GENERATOR) > 0.5),
    lambda b, h, q, k: q >= k + torch.randint(0, 4, ()),
    lambda b, h, q, k: q >= k + torch.empty(()).normal_().to(torch.int32),
    lambda b, h, q, k: (q >= k) & torch.bernoulli(torch.tensor(0.5)).bool(),
    lambda b, h, q, k: q >= k + torch.randperm(4)[0],
    lambda b, h, q, k: (q >= k) & (random.random() > 2.0),
    lambda b, h, q, k: (q >= k) & (float(np.random.rand()) > 2.0),
]


@pytest.mark.parametrize("mod", DRAWING)
def test_random_numbers_are_refused(mod: Mod) -> None:
    with pytest.raises(CuirError) as error:
        trace(Specification("drawn", mask_mod=mod))
    result = error.value.diagnostics[0]
    assert result.code == "X120" and "random" in result.message and result.span is not None and result.span.source.name == __file__


def test_a_score_that_drops_at_random_is_refused() -> None:
    for mod in (lambda s, b, h, q, k: torch.nn.functional.dropout(s, 0.1), lambda s, b, h, q, k: s * torch.rand_like(s)):
        with pytest.raises(CuirError, match="X120"):
            trace(Specification("dropped", score_mod=mod))


def test_numbers_drawn_before_are_captured() -> None:
    drawn = torch.randn(4, generator=torch.Generator().manual_seed(0))
    traced = trace(Specification("bias", score_mod=lambda s, b, h, q, k: s + drawn[h]))
    assert [p.name for p in traced.parameters] == ["drawn"]


CONVERTED: list[Mod] = [
    lambda s, b, h, q, k: s.to(torch.float16),
    lambda s, b, h, q, k: s.half().float(),
    lambda s, b, h, q, k: torch.tanh(s * 2.0).bfloat16(),
    lambda s, b, h, q, k: s.to(dtype=torch.bfloat16) + 1.0,
    lambda s, b, h, q, k: s.type(torch.float16),
    lambda s, b, h, q, k: s.type("torch.HalfTensor"),
    lambda s, b, h, q, k: s.type_as(q.half()),
]


@pytest.mark.parametrize("mod", CONVERTED)
def test_a_score_is_not_rounded_to_half_precision(mod: Mod) -> None:
    with pytest.raises(CuirError) as error:
        trace(Specification("half", score_mod=mod))
    result = error.value.diagnostics[0]
    assert result.code == "X120" and "16" in result.message and result.span is not None


def score(mod: Mod) -> str:
    return show(trace(Specification("m", score_mod=mod)).score)


def test_wider_conversions_change_nothing() -> None:
    plain = score(lambda s, b, h, q, k: s + q * 0.5)
    for mod in (
        lambda s, b, h, q, k: s.float() + q * 0.5,
        lambda s, b, h, q, k: s.double() + q * 0.5,
        lambda s, b, h, q, k: s.to(torch.float64) + q * 0.5,
    ):
        assert score(mod) == plain


ROUNDED: list[Mod] = [
    lambda b, h, q, k: q.half() >= k.half(),
    lambda b, h, q, k: (q.to(torch.float16) * 0.3).float() >= k * 0.3,
    lambda b, h, q, k: (q.bfloat16() + 1) * 2 >= k,
    lambda b, h, q, k: q.half() + h.half() >= k.half(),
    lambda b, h, q, k: q.half() * k.float() >= k,
    lambda b, h, q, k: torch.where(q.half() > 2048, q, k).half() >= k,
    lambda b, h, q, k: -torch.maximum(q.bfloat16(), k.bfloat16()) <= -k,
]


@pytest.mark.parametrize("mod", ROUNDED)
def test_indices_are_rounded_as_pytorch_rounds_them(mod: Mod) -> None:
    keep = trace(Specification("m", mask_mod=mod)).keep
    assert keep is not None
    q, k = torch.meshgrid(torch.arange(2040, 2070, dtype=torch.int32), torch.arange(2040, 2070, dtype=torch.int32), indexing="ij")
    for h in (0, 3):
        at = {"b": 0, "h": h, "q": q, "k": k}
        expected = mod(torch.tensor(0), torch.tensor(h), q, k)
        assert torch.equal(torch.as_tensor(evaluate(keep, at)).expand(expected.shape), expected)
