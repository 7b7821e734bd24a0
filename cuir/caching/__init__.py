"""Caches: bounded tables in memory, functions whose results are kept, files of the cache folder."""

from .memo import Memo, Statistics, WeakKeyMemo, WeakValueMemo, collect_statistics, memoize

__all__ = ["Memo", "Statistics", "WeakKeyMemo", "WeakValueMemo", "collect_statistics", "memoize"]
