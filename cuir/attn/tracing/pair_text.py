"""Pairs of a query and a key, formatted for messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

Translate = Callable[[Mapping[str, int]], Mapping[str, int]]
_INDICES_OF_USER: ContextVar[Translate | None] = ContextVar("_INDICES_OF_USER", default=None)


@contextmanager
def translate_pairs(translate: Translate | None) -> Iterator[None]:
    """Name pairs within this context by other indices.

    This is for mods that stand for a user's, whose b, h, q and k `translate` returns.
    """
    entered = _INDICES_OF_USER.set(translate)
    try:
        yield
    finally:
        _INDICES_OF_USER.reset(entered)


def describe_pair(pair: Mapping[str, int]) -> str:
    """Return b, h, q and k of a pair as text, as the user's mods see them."""
    translate = _INDICES_OF_USER.get()
    indices = pair if translate is None else translate(pair)
    return f"(b={indices['b']}, h={indices['h']}, q_idx={indices['q']}, kv_idx={indices['k']})"


__all__ = ["Translate", "describe_pair", "translate_pairs"]
