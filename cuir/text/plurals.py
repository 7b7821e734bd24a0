"""Numbers with nouns, in the singular or plural."""

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
