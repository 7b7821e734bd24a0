"""Digests of this package's files and of nvcc by content.

A copied cache folder thus keeps its entries.

Contents are read once: the cache folder keeps a digest by the places, sizes and times of its files. A time is that of
the last change of status, too, which no copy, package manager or image build can set.
"""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ..caching.disk import RESULTS, mark_used, write_whole

PACKAGE = Path(__file__).parent.parent
LENGTH = 32  # of a digest


def digest(parts: Sequence[str]) -> str:
    """Return a digest of texts; other texts, or the same joined elsewhere, have another one."""
    lengths = ",".join(str(len(p)) for p in parts)
    return hashlib.sha256("\0".join([lengths, *parts]).encode("utf-8", "surrogatepass")).hexdigest()[:LENGTH]


@functools.cache
def describe_package() -> str:
    """Describe the files that this process runs, by their names in the package and their contents."""
    return describe_folder(PACKAGE, _PACKAGE_STATUS)


def describe_folder(folder: Path, status: Sequence[str]) -> str:
    """Return a digest of the names and contents of a folder's files.

    The files had this status (`list_status`). Those that have changed since then have a digest of the old status, which
    no other process has.
    """

    def read() -> str | None:
        contents = digest(list(_read_contents(str(folder), "")))
        return contents if list_status(folder) == list(status) else None

    return _remember(["folder", *status], read) or digest(["changed", *status])


def list_status(folder: Path) -> list[str]:
    """Return place, size and times of each file of a folder, in order, without byte code."""
    return list(_walk_status(str(folder)))


@functools.cache
def describe_nvcc(path: str) -> str:
    """Return a digest of what a compiler says of its version; of another program, of its file's status.

    Raises OSError if there is no such file.
    """
    path = os.path.realpath(path)
    status = f"{path} {_describe_times(os.stat(path))}"

    def read() -> str | None:
        try:
            version = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError):
            return None
        return digest([version]) if "release" in version else None

    return _remember(["nvcc", status], read) or status


def _remember(status: Sequence[str], read: Callable[[], str | None]) -> str | None:
    """Return the digest that the cache folder has for files of a status.

    If there is none, read the files and store their digest.
    """
    entry = RESULTS.path("digests") / digest(status)
    try:
        stored = entry.read_text(encoding="ascii")
        if len(stored) == LENGTH and not stored.strip("0123456789abcdef"):
            mark_used(entry)
            return stored
    except (OSError, ValueError):  # not there, or damaged
        pass
    result = read()
    if result is not None:
        write_whole({entry: result.encode("ascii")})
    return result


def _list_entries(folder: str) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return sorted((e for e in entries if e.name != "__pycache__"), key=lambda e: e.name)


def _walk_status(folder: str) -> Iterator[str]:
    for entry in _list_entries(folder):
        if entry.is_dir():
            yield from _walk_status(entry.path)
        else:
            yield f"{entry.path} {_describe_times(entry.stat())}"


def _describe_times(status: os.stat_result) -> str:
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"


def _read_contents(folder: str, name: str) -> Iterator[str]:
    """Yield the name within the outer folder and the content's digest of each file, in order."""
    for entry in _list_entries(folder):
        if entry.is_dir():
            yield from _read_contents(entry.path, f"{name}{entry.name}/")
        else:
            yield f"{name}{entry.name} {hashlib.sha256(Path(entry.path).read_bytes()).hexdigest()}"


_PACKAGE_STATUS = list_status(PACKAGE)  # now: of the code that this process runs, not of an upgrade while it does

__all__ = ["describe_folder", "describe_nvcc", "describe_package", "digest", "list_status"]
