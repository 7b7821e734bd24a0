"""The pages stay short, and their sentences too."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.page_blocks import FOLDER, ROOT, read_visible
from tests.page_words import LONGEST_SENTENCE, MEAN_SENTENCE, MOST_WORDS, PAGES, measure_page, read_sentences

TUTORIALS = [page for page in PAGES if page.parent == FOLDER]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_sentences_are_short(page: Path) -> None:
    assert measure_page(page).mean <= MEAN_SENTENCE
    assert [s for s in read_sentences(page) if len(s.split()) > LONGEST_SENTENCE] == []


def test_all_pages_together_stay_short() -> None:
    assert sum(measure_page(page).words for page in PAGES) <= MOST_WORDS


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.name)
def test_sentences_of_tutorials_are_shorter(page: Path) -> None:
    assert measure_page(page).mean < 18
    assert [s for s in read_sentences(page) if len(s.split()) > 25] == []


def test_the_six_tutorials_have_at_most_7500_words_and_code() -> None:
    assert sum(len(read_visible(page).split()) for page in TUTORIALS) <= 7500
