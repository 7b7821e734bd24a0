"""Phrases of messages: numbers with nouns, and work under way with the share of it that is done."""

from __future__ import annotations


def count_noun(n: int, noun: str) -> str:
    """Return a number and a noun, in the plural unless the number is 1.

    Examples: `1 arrival`, `2,048 bytes`, `3 copies`.
    """
    return f"{n:,} {noun if n == 1 else make_plural(noun)}"


def make_plural(noun: str) -> str:
    """Return the regular plural."""
    return noun[:-1] + "ies" if noun.endswith("y") and noun[-2:-1] not in "aeiou" else noun + "s"


def make_singular(noun: str) -> str:
    """Return the singular of a regular plural: `copy` of `copies`."""
    return noun[:-3] + "y" if noun.endswith("ies") else noun.removesuffix("s")


class ProgressMessage(str):
    """Text for people, with the share of the work that is done, 0 to 1.

    A plain string says nothing about the share.
    """

    share: float

    def __new__(cls, text: str, share: float) -> ProgressMessage:
        message = super().__new__(cls, text)
        message.share = min(max(share, 0.0), 1.0)
        return message


def get_share(message: str) -> float | None:
    """Return the share that a message tells, None for a plain string."""
    return message.share if isinstance(message, ProgressMessage) else None
