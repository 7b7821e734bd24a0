"""Waits for async groups, which end in the order of their issue: all but the last few are over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def split_at_most(groups: Sequence[T], keep: int) -> tuple[list[T], list[T]]:
    """Return the groups that are over after a wait that leaves `keep` in flight, and these."""
    n = max(0, len(groups) - keep)
    return list(groups[:n]), list(groups[n:])


def split_through(groups: Sequence[T], last: T) -> tuple[list[T], list[T]]:
    """Return the groups that are over after a wait for `last`, and those issued behind it."""
    n = groups.index(last) + 1
    return list(groups[:n]), list(groups[n:])
