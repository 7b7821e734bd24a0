"""The pairs of a query and a key that messages name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar

# Of mods that stand for a user's with other indices: from b, h, q and k of a pair, those that the user's mods see.
INDICES_OF_USER: ContextVar[Callable[[Mapping[str, int]], Mapping[str, int]] | None] = ContextVar("INDICES_OF_USER", default=None)


def describe_pair(pair: Mapping[str, int]) -> str:
    """Return b, h, q and k of a pair in words, as the user's mods see them."""
    translate = INDICES_OF_USER.get()
    shown = pair if translate is None else translate(pair)
    return f"(b={shown['b']}, h={shown['h']}, q_idx={shown['q']}, kv_idx={shown['k']})"


__all__ = ["INDICES_OF_USER", "describe_pair"]
