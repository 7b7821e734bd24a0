"""Archives of recorded answers: the transcripts of one `cuir eval --record` run in benchmarks/results/NAME.tar.xz."""

from __future__ import annotations

import functools
import tarfile
import tempfile
from pathlib import Path


@functools.cache
def _make_folder() -> tempfile.TemporaryDirectory[str]:
    """Make the folder of unpacked archives; it is removed at the end of the process."""
    return tempfile.TemporaryDirectory(prefix="transcripts-")


@functools.cache
def open_transcripts(path: Path) -> Path:
    """Return a folder of transcripts: that of an archive NAME.tar.xz, or path itself if it is a folder.

    The archive holds the folder NAME.
    """
    if path.is_dir():
        return path
    target = Path(_make_folder().name)
    with tarfile.open(path) as archive:
        archive.extractall(target, filter="data")
    return target / path.name.removesuffix(".tar.xz")
