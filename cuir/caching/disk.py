"""Files of the cache folder: kinds, size limit, eviction, atomic writes.

The folder is `$CUIR_CACHE`, else `cuir` in the user's cache folder. Together its files take at most
`$CUIR_CACHE_LIMIT` MiB; those that were used least recently leave first.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

LOG = logging.getLogger("cuir.caching")
DEFAULT_LIMIT = 2048  # MiB
EVICTION_SHARE = 0.8  # share of the limit that eviction leaves


@dataclass(frozen=True)
class DiskCache:
    """Files of one kind in the cache folder.

    Attributes:
        name: What they are, as `cuir cache` names it.
        suffixes: Ends of their names.
        folder: Folder within the cache folder.
        key: What a file's name is a hash of.
        evicted: False for results of measurements, which only `cuir cache --clear` removes.
    """

    name: str
    suffixes: tuple[str, ...]
    key: str
    folder: str = ""
    evicted: bool = True

    def path(self, stem: str, suffix: str | None = None) -> Path:
        """Return the path of an entry, by the hash of its key."""
        return cache_dir() / self.folder / (stem + (suffix or self.suffixes[0]))

    def files(self) -> Iterator[tuple[Path, os.stat_result]]:
        """Yield the files that exist, with their status."""
        root = cache_dir() / self.folder
        for path in root.rglob("*") if self.folder else root.glob("*"):
            with contextlib.suppress(OSError):  # another process has removed it
                if path.name.endswith(self.suffixes) and path.is_file():
                    yield path, path.stat()


KERNELS = DiskCache("kernels", (".kernel",), "program, consts, files of this package, compiler, loader")
CUBINS = DiskCache("cubins", (".json", ".cubin"), "CUDA text, architecture, flags, compiler")
VERDICTS = DiskCache("verdicts", (".json",), "program, consts, structure of the mods, level, files of this package", "verified")
PTX = DiskCache(
    "ptx", (".ptx", ".ptx.json", ".cu", ".so"), "source, macros, flags, compiler; sizes and times of all files that it includes", "ptx"
)
RESULTS = DiskCache(
    "results", ("",), "texts that a transfer, a parsed program or a verdict of the checker depends on, files of this package", "results"
)
TUNING = DiskCache("tuning", (".json", ".jsonl"), "GPU, program, dtype, head dims", "tuned", evicted=False)
KINDS = (KERNELS, CUBINS, VERDICTS, RESULTS, PTX, TUNING)


def cache_dir() -> Path:
    """Return the cache folder: $CUIR_CACHE, else `cuir` in the user's cache folder."""
    variable = os.environ.get("CUIR_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(variable) if variable else Path(base) / "cuir"


def size_limit() -> int:
    """Return the limit in bytes: $CUIR_CACHE_LIMIT MiB, else 2 GiB.

    A value that is no positive number counts as not set.
    """
    try:
        mebibytes = float(os.environ["CUIR_CACHE_LIMIT"])
    except (KeyError, ValueError):
        mebibytes = DEFAULT_LIMIT
    return int((mebibytes if 0 < mebibytes < 2**40 else DEFAULT_LIMIT) * 2**20)


def mark_used(*paths: Path) -> None:
    """Update the access times of files that were read, so that eviction removes others first."""
    for path in paths:
        with contextlib.suppress(OSError):
            os.utime(path)


def write_whole(files: Mapping[Path, bytes]) -> None:
    """Write files of the cache in order, each atomically, and evict others above the limit.

    A folder that cannot be written is no error.
    """
    try:
        for path, content in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.parent / f"tmp{secrets.token_hex(8)}"
            try:
                with open(temporary, "xb") as file:  # with the rights of any new file: other users may read a copied folder
                    file.write(content)
                os.replace(temporary, path)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise
    except OSError as error:
        LOG.debug("nothing is cached: %s", error)
        return
    if _Eviction.is_due(sum(map(len, files.values()))):
        evict(frozenset(files))


class _Eviction:
    """Schedule of this process for eviction: at the first write, then after a minute or many bytes."""

    SECONDS = 60.0
    SHARE = 0.05  # of the limit
    at = -math.inf
    written = 0

    @classmethod
    def is_due(cls, size: int) -> bool:
        """Add `size` bytes that were written; return True if the folder is to be looked at."""
        cls.written += size
        if time.monotonic() - cls.at < cls.SECONDS and cls.written < cls.SHARE * size_limit():
            return False
        cls.at, cls.written = time.monotonic(), 0
        return True


def evict(protected: frozenset[Path] = frozenset()) -> int:
    """Remove the least recently used files while the folder is above its limit; return how many.

    `protected` are files that were just written.
    """
    entries = [(status.st_mtime_ns, path, status.st_size) for kind in KINDS if kind.evicted for path, status in kind.files()]
    total, limit, removed = sum(size for *_, size in entries), size_limit(), 0
    if total <= limit:
        return 0
    for _, path, size in sorted(entries):
        if total <= EVICTION_SHARE * limit:
            break
        if path not in protected:
            with contextlib.suppress(OSError):
                path.unlink()
                removed += 1
            total -= size
    LOG.info("removed %d files of %s, which is limited to %d MiB", removed, cache_dir(), limit // 2**20)
    return removed


def clear(kind: DiskCache) -> tuple[int, int]:
    """Remove the files of a kind; return their number and bytes."""
    number = size = 0
    for path, status in list(kind.files()):
        with contextlib.suppress(OSError):
            path.unlink()
            number, size = number + 1, size + status.st_size
    return number, size


def remove_leftovers(age: float = 3600.0) -> None:
    """Remove temporary files that a killed process left, once they are `age` seconds old."""
    for path in cache_dir().rglob("tmp*"):
        with contextlib.suppress(OSError):
            if path.is_file() and "." not in path.name and time.time() - path.stat().st_mtime > age:
                path.unlink()


__all__ = [
    "CUBINS", "KERNELS", "KINDS", "PTX", "RESULTS", "TUNING", "VERDICTS", "DiskCache", "cache_dir", "clear", "evict", "mark_used", "remove_leftovers",
    "size_limit", "write_whole",
]  # fmt: skip
