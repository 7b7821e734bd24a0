"""Inspection of a running process: `cuir.debug.caches()`."""

from __future__ import annotations

from .caching import Statistics, collect_statistics


class CacheTable(tuple[Statistics, ...]):
    """Statistics of caches; a string of it is a table."""

    __slots__ = ()

    def __str__(self) -> str:
        columns = ("name", "tables", "entries", "limit", "hits", "misses", "evictions")
        lines = [columns, *(tuple("-" if (v := getattr(row, c)) is None else str(v) for c in columns) for row in self)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
        return "\n".join(
            "  ".join(text.ljust(w) if i == 0 else text.rjust(w) for i, (text, w) in enumerate(zip(line, widths, strict=True)))
            for line in lines
        )

    __repr__ = __str__


def caches() -> CacheTable:
    """Return the statistics of every table of results in this process, by name.

    `print(cuir.debug.caches())` is a table; docs/caches.md says what each holds. Files are listed by `cuir cache`.
    """
    return CacheTable(collect_statistics())


__all__ = ["CacheTable", "caches"]
