"""Numbers of things in words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuir.text.phrases import count_noun, make_plural, make_singular

NOUNS = ("arrival", "array", "bulk copy", "byte", "warp", "day")


@pytest.mark.parametrize(
    ("n", "noun", "words"),
    [
        (1, "arrival", "1 arrival"),
        (0, "arrival", "0 arrivals"),
        (3, "copy", "3 copies"),
        (2048, "byte", "2,048 bytes"),
        (2, "array", "2 arrays"),
    ],
)
def test_one_is_singular_and_all_else_plural(n: int, noun: str, words: str) -> None:
    assert count_noun(n, noun) == words


@given(st.sampled_from(NOUNS))
def test_the_singular_of_the_plural_is_the_noun(noun: str) -> None:
    assert make_singular(make_plural(noun)) == noun
