"""Packages of peers that are not there, made for a test."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """Makes a module of a given text that can be imported until the test ends; `a.b` in a package that has nothing else."""
    before = set(sys.modules)

    def install_module(module: str, text: str) -> None:
        *packages, name = module.split(".")
        folder = tmp_path
        for package in packages:
            folder /= package
            folder.mkdir(exist_ok=True)
            (folder / "__init__.py").write_text("", encoding="utf-8")
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
        result.add(module.partition(".")[0])
        monkeypatch.syspath_prepend(tmp_path)

    result: set[str] = set()
    yield install_module
    for loaded in set(sys.modules) - before:
        if loaded.partition(".")[0] in result:
            del sys.modules[loaded]
