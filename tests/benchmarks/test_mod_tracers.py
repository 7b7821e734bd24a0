"""Tracers of mods: each engine traces mods of the corpus, and PyTorch's get the values of keyword parameters."""

from __future__ import annotations

import pytest
import torch

import corpus
from benchmarks import mod_tracers
from cuir.spec.loading import as_specification


def test_keyword_parameters_are_filled_in() -> None:
    spec = as_specification(corpus.variant("document"), "document")
    ((mod, arguments),) = mod_tracers.list_mods(spec)
    assert len(arguments) == 4 and isinstance(mod(*arguments), torch.Tensor)


@pytest.mark.parametrize("name", mod_tracers.TRACERS)
def test_what_no_engine_traces_is_counted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "variants", lambda: ["causal", "branch"])

    def branch(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return q >= k if q > 3 else q < k

    causal = corpus.variant("causal")
    monkeypatch.setattr(corpus, "variant", lambda name: {"causal": causal, "branch": branch}[name])
    traced, times = mod_tracers.measure(name)
    assert traced == 1 and len(times) == 2
