"""A trace whose parameters get other names is the trace that would have been made with them."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import pytest
import torch

import corpus
from cuir.attn.tracing.read_ranges import trace_without_clashes
from cuir.attn.tracing.splice_names import list_reserved, list_reserved_in_expressions
from cuir.attn.tracing.trace import trace, tracing_once
from cuir.spec.loading import as_specification
from cuir.spec.specification import Specification
from cuir.syntax.nodes import Binary, Name
from cuir.syntax.walk import rename_names

RESERVED_SETS: list[Set[str]] = [set(), list_reserved(), list_reserved() | {"window", "window_", "prefix", "n", "S", "Q", "x_", "slopes"}]


def clashing() -> Specification:
    """Captured values with names of indices and of each other, one that no expression reads, and one that decides control flow."""
    S, q, x, n, unused, x_ = torch.arange(64), 3, torch.ones(4), 5, 7, 0.5

    def score_mod(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        _ = unused * 2
        return torch.where(i - j < q, s * x[h] * x_, -torch.inf)

    def mask_mod(b: Any, h: Any, i: Any, j: Any) -> Any:
        return (S[i] == S[j]) & (i - j <= q) if n > 4 else i >= j

    return Specification("clashing", mask_mod, score_mod)


SPECS = {"clashing": clashing(), **{name: as_specification(corpus.variant(name), name) for name in corpus.variants()}}


@pytest.mark.parametrize("name", SPECS)
def test_other_names_are_those_of_another_trace(name: str) -> None:
    result = trace_without_clashes(SPECS[name])
    for selected in RESERVED_SETS:
        repeated = trace(SPECS[name], selected)
        assert result.rename_reserved(selected) == repeated and result.rename_reserved(selected).notes == repeated.notes
    assert result.rename_reserved(list_reserved_in_expressions()) is result


@pytest.mark.parametrize("name", ["clashing", "causal_document", "alibi"])
def test_within_a_block_one_trace_gives_all_names(name: str) -> None:
    spec = SPECS[name]
    before = [trace(spec, selected) for selected in RESERVED_SETS]
    with tracing_once():
        assert [trace(spec, selected) for selected in RESERVED_SETS] == before
        assert trace(spec, list_reserved_in_expressions()) is trace(spec, list_reserved_in_expressions())
    assert trace(spec, list_reserved_in_expressions()) is not trace(spec, list_reserved_in_expressions())


def test_names_are_exchanged_at_once_and_shared_subtrees_stay_shared() -> None:
    shared = Binary("+", Name("a"), Name("b"))
    result = rename_names(Binary("*", shared, shared), {"a": "b", "b": "a"})
    assert isinstance(result, Binary) and result.left == Binary("+", Name("b"), Name("a")) and result.left is result.right
    assert rename_names(shared, {"c": "d"}) is shared
