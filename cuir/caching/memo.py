"""Tables of results in memory, each with an owner, a key, a limit, an invalidation and statistics.

`cuir.debug.caches()` lists them, and docs/caches.md describes them.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sized
from dataclasses import dataclass
from typing import ParamSpec, Protocol, TypeVar, overload

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
P = ParamSpec("P")
R = TypeVar("R")
D = TypeVar("D")


class _Cached(Protocol):
    """A function of functools.lru_cache."""

    def cache_info(self) -> functools._CacheInfo: ...


@dataclass(frozen=True)
class Statistics:
    """Description and counters of all tables of one name.

    Attributes:
        name: Unique name, of module and table.
        key: What an entry is found by.
        invalidation: When an entry stops being used.
        limit: Largest number of entries of one table; None for as many as there are keys alive.
        tables: Number of tables, more than one where each object has its own.
        entries: Entries in all of them.
        hits, misses: Lookups that found an entry and that did not; None where they are not counted.
        evictions: Entries that were dropped for the limit.
    """

    name: str
    key: str
    invalidation: str
    limit: int | None
    tables: int
    entries: int
    hits: int | None
    misses: int | None
    evictions: int


# by name; dead references leave with their table
_TABLES: dict[str, list[weakref.ref[_Described]]] = {}
_FUNCTIONS: list[tuple[str, _Cached]] = []


class _Described:
    """Description and counters of a table."""

    name: str
    key: str
    invalidation: str
    limit: int | None
    counted: bool
    hits: int
    misses: int
    evictions: int

    def describe(self, name: str, key: str, invalidation: str, limit: int | None = None, counted: bool = True) -> None:
        """Set the description of the cache, and add the cache to the list of all caches."""
        self.name, self.key, self.invalidation, self.limit, self.counted = name, key, invalidation, limit, counted
        self.hits = self.misses = self.evictions = 0
        tables = _TABLES.setdefault(name, [])
        tables.append(weakref.ref(self, lambda dead: tables.remove(dead)))

    def count(self, is_hit: bool) -> None:
        """Count a lookup."""
        if is_hit:
            self.hits += 1
        else:
            self.misses += 1


class Memo(_Described, OrderedDict[K, V]):
    """Table of at most `limit` results; the entry that was written first leaves first.

    `get` counts, other lookups do not. A table on the way of a warm call passes `counted=False` and is read by
    `dict.get`, which costs such a call nothing.
    """

    def __init__(self, name: str, *, key: str, invalidation: str, limit: int, counted: bool = True) -> None:
        super().__init__()
        self.describe(name, key, invalidation, limit, counted)

    @overload
    def get(self, key: K, default: None = None) -> V | None: ...
    @overload
    def get(self, key: K, default: V | D) -> V | D: ...
    def get(self, key: K, default: V | D | None = None) -> V | D | None:
        """Return the entry of a key, and count the lookup."""
        value = super().get(key, default)
        self.count(value is not default)
        return value

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        assert self.limit is not None
        while len(self) > self.limit:
            with contextlib.suppress(KeyError):  # another thread has emptied the table
                self.popitem(last=False)
                self.evictions += 1


class WeakKeyMemo(_Described, weakref.WeakKeyDictionary[K, V]):
    """Table of results about objects, each dropped when its object dies."""

    def __init__(self, name: str, *, key: str, invalidation: str) -> None:
        super().__init__()
        self.describe(name, key, invalidation, counted=False)


class WeakValueMemo(_Described, weakref.WeakValueDictionary[K, V]):
    """Table of objects, each dropped when nothing else holds it."""

    def __init__(self, name: str, *, key: str, invalidation: str) -> None:
        super().__init__()
        self.describe(name, key, invalidation, counted=False)


def memoize(limit: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Cache a pure function's last `limit` results, found by its arguments.

    The least recently used one leaves first.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        cached = functools.lru_cache(maxsize=limit)(function)
        _FUNCTIONS.append((f"{function.__module__.removeprefix('cuir.')}.{function.__qualname__}", cached))
        return cached  # type: ignore[return-value]  # calls are typed as the function's

    return decorate


def collect_statistics() -> tuple[Statistics, ...]:
    """Return the statistics of all tables and functions of the modules that were imported, by name."""
    rows = []
    for name, references in _TABLES.items():
        tables = [t for r in list(references) if (t := r()) is not None]
        if tables:
            first, counted = tables[0], tables[0].counted
            hits, misses = (sum(getattr(t, counter) for t in tables) if counted else None for counter in ("hits", "misses"))
            entries, evictions = sum(len(t) for t in tables if isinstance(t, Sized)), sum(t.evictions for t in tables)
            rows.append(Statistics(name, first.key, first.invalidation, first.limit, len(tables), entries, hits, misses, evictions))
    for name, function in _FUNCTIONS:
        info = function.cache_info()
        evictions = max(0, info.misses - info.currsize)
        rows.append(
            Statistics(name, "arguments", "never: a pure function", info.maxsize, 1, info.currsize, info.hits, info.misses, evictions)
        )
    return tuple(sorted(rows, key=lambda row: row.name))


__all__ = ["Memo", "Statistics", "WeakKeyMemo", "WeakValueMemo", "collect_statistics", "memoize"]
