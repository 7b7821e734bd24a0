"""Pairs of a query and a key, in the words of messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

Translate = Callable[[Mapping[str, int]], Mapping[str, int]]
_INDICES_OF_USER: ContextVar[Translate | None] = ContextVar("_INDICES_OF_USER", default=None)


@contextmanager
def translate_pairs(translate: Translate | None) -> Iterator[None]:
    """Name pairs within by other indices: for mods that stand for a user's, whose b, h, q and k `translate` gives."""
    entered = _INDICES_OF_USER.set(translate)
    try:
        yield
    finally:
        _INDICES_OF_USER.reset(entered)


def describe_pair(pair: Mapping[str, int]) -> str:
    """Return b, h, q and k of a pair in words, as the user's mods see them."""
    translate = _INDICES_OF_USER.get()
    shown = pair if translate is None else translate(pair)
    return f"(b={shown['b']}, h={shown['h']}, q_idx={shown['q']}, kv_idx={shown['k']})"


__all__ = ["Translate", "describe_pair", "translate_pairs"]
