"""Disk cache of results that follow from texts: transfers, verdicts of the checker, parsed programs.

A key names everything that a result depends on; this module adds the package's files and Python's version. Entries are
compressed with a checksum; a damaged one counts as missing.
"""

from __future__ import annotations

import io
import pickle
import sys
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from ..caching.disk import RESULTS, mark_used, write_whole
from ..ops import OPERATORS, TABLE, Op
from .content_digests import describe_package, digest
from .garbage_collection import without_collections

T = TypeVar("T")


def remember(kind: str, key: Sequence[str], cls: type[T], make: Callable[[], T]) -> T:
    """Return the cached result for a key; make and store it if there is none.

    cls: the class of results, of this package or a plain value's.
    """
    entry = make_entry_path(kind, key)
    cached = _load(entry, cls)
    if cached is not None:
        return cached
    result = make()
    _store(entry, result)
    return result


def make_entry_path(kind: str, key: Sequence[str]) -> Path:
    """Return the file of a result, named after its key."""
    return RESULTS.path(kind) / digest([describe_package(), sys.implementation.cache_tag or sys.version, kind, *key])


def _load(entry: Path, cls: type[T]) -> T | None:
    try:
        result = restore(zlib.decompress(entry.read_bytes()))
    except Exception:  # a damaged file may raise anything: the result is made again
        return None
    if not isinstance(result, cls):
        return None
    mark_used(entry)
    return result


def _store(entry: Path, result: object) -> None:
    write_whole({entry: zlib.compress(dump(result), 1)})


# ---- pickles that run nothing
def dump(value: object) -> bytes:
    """Return a value of this package's classes as bytes."""
    content = io.BytesIO()
    _Writer(content, pickle.HIGHEST_PROTOCOL).dump(value)
    return content.getvalue()


def restore(content: bytes) -> object:
    """Return the value of `dump`.

    Raises UnpicklingError for what it would not have written, and many other errors for damaged bytes.
    """
    with without_collections():
        return _Reader(io.BytesIO(content)).load()


class _Writer(pickle.Pickler):
    def persistent_id(self, obj: object) -> str | None:
        return obj.name if isinstance(obj, Op) else None


class _Reader(pickle.Unpickler):
    """Unpickler of classes of this package and entries of the table of primitives alone.

    A foreign file in the folder thus runs nothing.
    """

    def persistent_load(self, name: str) -> Op:
        return OPERATORS[name] if name in OPERATORS else TABLE[name]

    def find_class(self, module: str, name: str) -> object:
        if module.split(".")[0] == "cuir" and "." not in name:
            cls = super().find_class(module, name)
            if isinstance(cls, type):
                return cls
        raise pickle.UnpicklingError(f"{module}.{name} does not belong into the cache")


__all__ = ["describe_package", "digest", "dump", "make_entry_path", "remember", "restore"]
