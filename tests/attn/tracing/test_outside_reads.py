"""Mods that draw random numbers, and mods that convert to half precision.

Tensors that a mod has from classes, modules, slots and properties: traced, named, refused and verified as those that it closes over.
"""

from __future__ import annotations

import functools
import inspect
import random
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from cuir.attn.splicing.specification_copies import bound_reads
from cuir.attn.tracing.mod_evaluator import evaluate
from cuir.attn.tracing.outside_reads import Outside
from cuir.attn.tracing.trace import trace
from cuir.spec.specification import Lengths, Specification
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


IDS = torch.arange(9) // 3


class Config:
    ids, table, cap, sizes = IDS, torch.arange(12).view(3, 4) / 8, torch.tensor(2.0), {"window": [torch.tensor(3)]}


class Mask(Config):
    @property
    def bias(self) -> torch.Tensor:
        return self.table

    def __call__(self, b: Any, h: Any, q: Any, k: Any) -> Any:
        return self.ids[q] == type(self).ids[k]


class Slots:
    __slots__ = ("ids",)

    def __init__(self) -> None:
        self.ids = IDS


MODULE = types.ModuleType("held")
MODULE.settings = Config  # type: ignore[attr-defined]
MASK, SLOTS, TABLES = Mask(), Slots(), [IDS]
WINDOW = "sizes_window_0"


def specification(mod: Callable[..., Any]) -> Specification:
    return Specification("outside", **{"mask_mod" if len(inspect.signature(mod).parameters) == 4 else "score_mod": mod})


FORMS: dict[str, tuple[Callable[..., Any], str, list[str]]] = {
    "a class": (lambda b, h, q, k: Config.ids[q] == Config.ids[k], "ids[q] == ids[k]", ["ids"]),
    "the class of an object": (MASK, "ids[q] == ids[k]", ["ids"]),
    "a class in a module": (lambda b, h, q, k: MODULE.settings.ids[q] == k, "ids[q] == k", ["ids"]),
    "a property": (lambda s, b, h, q, k: s + MASK.bias[h, k], "S * scale + bias[h, k]", ["bias"]),
    "slots": (lambda b, h, q, k: SLOTS.ids[q] == SLOTS.ids[k], "ids[q] == ids[k]", ["ids"]),
    "step by step": (lambda s, b, h, q, k: s + Config.table[h][k], "S * scale + table[h, k]", ["table"]),
    "a shape": (lambda b, h, q, k: q - k <= Config.table.shape[1] + len(Config.table), "q - k <= 7", []),
    "another dtype": (lambda b, h, q, k: Config.table.int()[h, k] <= q, "cast(table[h, k], i32) <= q", ["table"]),
    "no dims": (lambda s, b, h, q, k: s / Config.cap + Config.cap, "S * (scale / cap[0]) + cap[0]", ["cap"]),
    "no dims, first": (lambda s, b, h, q, k: s + torch.maximum(Config.cap, k), "S * scale + max(cap[0], cast(k, f32))", ["cap"]),
    "no dims, in an index": (
        lambda b, h, q, k: TABLES[0][Config.sizes["window"][0]] <= k,
        f"TABLES_0[{WINDOW}[0]] <= k",
        ["TABLES_0", WINDOW],
    ),
    "a partial": (functools.partial(lambda table, s, b, h, q, k: s + table[h, k], Config.table), "S * scale + table[h, k]", ["table"]),
    "its own": (lambda s, b, h, q, k: s * torch.tensor(0.5) + torch.full((), 2), "S * (scale * 0.5) + 2.0", []),
}


@pytest.mark.parametrize("name", FORMS)
def test_traced_and_named(name: str) -> None:
    mod, text, names = FORMS[name]
    traced_mod = trace(specification(mod))
    assert show(traced_mod.score if traced_mod.keep is None else traced_mod.keep) == text
    assert [p.name for p in traced_mod.parameters] == names


@pytest.mark.parametrize(
    ("mod", "code", "says"),
    [
        (lambda b, h, q, k: Config.ids.cumsum(0) <= k, "X120", "`cumsum` of a row"),
        (lambda b, h, q, k: torch.cumsum(Config.ids, 0) <= k, "X120", "`cumsum` of a row"),
        (lambda b, h, q, k: Config.ids[q, k] == 0, "X120", "`ids` has 1 dims, found 2 indices"),
        (lambda b, h, q, k: q >= k if Config.cap > 1 else q <= k, "X121", "only known when the kernel runs"),
        (lambda s, b, h, q, k: s + float(Config.cap), "X121", "only known when the kernel runs"),
        (lambda b, h, q, k: torch.arange(q)[0] == k, "X120", "only known when the kernel runs"),
    ],
)
def test_refused_as_what_is_closed_over(mod: Callable[..., Any], code: str, says: str) -> None:
    with pytest.raises(CuirError) as caught:
        trace(specification(mod))
    result = caught.value.diagnostics[0]
    assert result.code == code and says in result.message, result.render()
    assert result.span is not None and result.span.source.name == __file__


def test_the_program_of_other_lengths_reads_zeros_outside() -> None:
    at = Lengths(1, 1, 1, 12, 12)
    for mod in (FORMS["a class"][0], lambda b, h, q, k: MASK.ids.float()[q] == TABLES[0].float()[k]):
        spec = bound_reads(specification(mod))
        longer = torch.cat([IDS, torch.zeros(3, dtype=torch.int64)])
        assert torch.equal(spec.mask(at)[0, 0], longer[:, None] == longer)
        assert [p.name for p in trace(spec).parameters] == [p.name for p in trace(specification(mod)).parameters]
    assert Config.ids is IDS


def test_results_of_operations_are_not_from_outside() -> None:
    tensors: list[torch.Tensor] = []
    ours, second = torch.ones(2), torch.ones(2)
    with Outside(lambda x: tensors.append(x) or x, [ours]):
        result = (ours + 1) * torch.ones(2) + torch.stack([ours, ours])[0]
        result = result.unbind()[0] * 2 + second
    assert all(x is second for x in tensors) and tensors and result.tolist() == [7.0, 7.0]
