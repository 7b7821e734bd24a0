"""Entries of solutions: names that are known, else a source's last function."""

from __future__ import annotations

from types import ModuleType

import pytest

from cuir.judge.solution_entries import find_entry


def make(**names: object) -> ModuleType:
    module = ModuleType("mine")
    vars(module).update(names)
    return module


def test_known_names_come_first_and_sources_may_have_others() -> None:
    assert find_entry(make(helper=print, solution=print, ModelNew=int), is_source=False) == "ModelNew"
    assert find_entry(make(add=print, softmax=print), is_source=True) == "softmax"
    with pytest.raises(LookupError, match="ModelNew"):
        find_entry(make(add=print, _forward=print, size=3), is_source=False)
