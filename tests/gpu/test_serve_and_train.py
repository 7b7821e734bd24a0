"""The files of the tutorial on training and serving, on a GPU: compiled steps in CUDA graphs, too."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.gpu.isolation import run_isolated
from tests.page_blocks import find_block, reader_folder, run_python

pytestmark = pytest.mark.gpu


def right(name: str) -> str:
    """Run a file, and what holds behind it."""
    block = find_block("docs/tutorials/serve_and_train.md", "file", name)
    with tempfile.TemporaryDirectory() as folder, reader_folder(block.page, Path(folder)):
        run_python(block)
    return name


@pytest.mark.parametrize("name", ["fit.py", "pack.py", "generate.py", "replay.py"])
def test_files_run(name: str) -> None:
    assert run_isolated(right, name, seconds=400) == name
