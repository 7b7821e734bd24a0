"""Programs of `corpus/faulty` as files, for commands that take paths."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import corpus


@functools.cache
def _make_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="faulty-")


@functools.cache
def faulty_file(name: str) -> str:
    """Write the program of this name; return its path. The file is removed at the end of the process."""
    path = Path(_make_folder().name, f"{name}.cuir")
    path.write_text(corpus.faulty()[name], encoding="utf-8")
    return str(path)
