"""Equal quotients of a query and a key as bounds of a column: the same pairs, and no division of a column."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import corpus
from cuir.attn.masks.predicate import normal
from cuir.attn.splicing.backward import transfer_backward
from cuir.attn.splicing.quotient_bounds import bound_columns
from cuir.attn.splicing.splice import transfer
from cuir.attn.tracing.mod_evaluator import evaluate
from cuir.attn.tracing.trace import trace
from cuir.spec.loading import as_specification
from cuir.spec.specification import Specification
from cuir.syntax.nodes import Expr
from cuir.syntax.parser import parse
from cuir.syntax.printer import show
from tests.strategies.selection import examples

MASKS: tuple[Callable[[int], Callable[..., Any]], ...] = (
    lambda c: lambda b, h, q, k: q // c == k // c,
    lambda c: lambda b, h, q, k: (q >= k) & (q // c == k // c),
    lambda c: lambda b, h, q, k: (k > q) & (k // c == q // c),
    lambda c: lambda b, h, q, k: (k // c == q // c) & (q < k) & (h == 0),
    lambda c: lambda b, h, q, k: ((q >= k) & (q // c == k // c)) | (k < 5),
    lambda c: lambda b, h, q, k: ~((q - k >= 0) & ((q + 3) // c == k // c)),
    lambda c: lambda b, h, q, k: (q // c == k // (c + 1)) & (q // c >= k // c),
)


def documents(n: int) -> Callable[..., Any]:
    return lambda b, h, q, k: (q >= k) & (q // (n // 8) == k // (n // 8))


def keep_of(mod: Callable[..., Any]) -> Expr:
    keep = trace(Specification("mask", mod)).keep
    assert keep is not None
    return keep


@cache
def bounds_of(index: int, column: str) -> tuple[Expr, Expr]:
    keep = keep_of(MASKS[index](100))
    return keep, bound_columns(keep, column)


@given(st.sampled_from(range(len(MASKS))), st.integers(1, 70), st.sampled_from("qk"))
@examples(60)
def test_the_pairs_stay(index: int, c: int, column: str) -> None:
    q, k = torch.arange(90, dtype=torch.int32)[:, None], torch.arange(90, dtype=torch.int32)
    values = {"b": 0, "h": 0, "q": q, "k": k, "c": c}
    before, after = (torch.as_tensor(evaluate(e, values)).expand(90, 90) for e in bounds_of(index, column))
    assert torch.equal(before, after)


@pytest.mark.parametrize(
    ("column", "expected"),
    [("k", "(q >= k) & (k >= q // c * c)"), ("q", "(q >= k) & (q < k // c * c + c)")],
)
def test_a_causal_document_needs_one_bound(column: str, expected: str) -> None:
    assert show(bound_columns(keep_of(MASKS[1](100)), column)) == expected


def test_shifts_stay_where_both_bounds_are_needed() -> None:
    keep = keep_of(lambda b, h, q, k: q // 64 == k // 64)
    assert bound_columns(keep, "k") is keep
    assert "k // " not in show(bound_columns(keep_of(lambda b, h, q, k: q // 65 == k // 65), "k"))


def test_other_comparisons_stay() -> None:
    keep = keep_of(MASKS[6](100))
    assert bound_columns(keep, "k") is keep


def test_blocks_of_documents_of_a_captured_length_have_a_closed_form() -> None:
    result = transfer(corpus.kernels()["flash_fwd_sm90"], as_specification(documents(800), "documents"), bits=False)
    assert result.lists is None and "the blocks hold for positive n_ // 8" in result.notes
    assert normal(keep_of(documents(800))).exact
    assert not normal(keep_of(lambda b, h, q, k: q // (k + 1) == 3)).exact


def test_gradients_take_bounds_of_the_query() -> None:
    origin = parse(corpus.kernels()["flash_bwd_sm90"].read_text(encoding="utf-8"), "flash_bwd_sm90.cuir")
    keep = show(transfer_backward(origin, as_specification(documents(800), "documents")).program.funcs()["keep"])
    assert "q // " not in keep and "k // (n_ // 8) * (n_ // 8)" in keep


@pytest.mark.parametrize("mod", [MASKS[1](-3), documents(-80)])
def test_negative_divisors_have_no_closed_form(mod: Callable[..., Any]) -> None:
    """For blocks and bounds assume that a captured divisor is positive."""
    keep = keep_of(mod)
    assert bound_columns(keep, "k") is bound_columns(keep, "q") is keep and not normal(keep).exact
    q, k = torch.arange(90, dtype=torch.int32)[:, None], torch.arange(90, dtype=torch.int32)
    values = {"b": 0, "h": 0, "q": q, "k": k, "c": -3, "n": -80}
    assert torch.equal(torch.as_tensor(evaluate(keep, values)), mod(0, 0, q, k))
