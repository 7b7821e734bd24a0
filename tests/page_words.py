"""Words and sentences of the pages. `python -m tests.page_words` prints the figures of each page under docs/."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tests.page_blocks import BLOCK, ROOT, read_visible

PAGES = sorted((ROOT / "docs").rglob("*.md"))
MOST_WORDS, MEAN_SENTENCE, LONGEST_SENTENCE = 61_497, 20, 45  # of all pages; of each page


def read_sentences(page: Path) -> list[str]:
    """Return the sentences of a page's prose, without code, tables and headings."""
    text = re.sub(r"^(?:```.*?^```|\|.*?|#.*?|:::.*?)$", "\n\n", read_visible(page), flags=re.S | re.M)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    parts = [p for block in re.split(r"\n(?:\s*\n|\s*(?:[*-]|\d+\.) )", text) for p in re.split(r"(?<=[.?!])\s+(?=\S)", block)]
    return [p for p in parts if p.strip()]


@dataclass(frozen=True)
class Figures:
    """Words outside of code, tables included; and the lengths of sentences outside of tables."""

    words: int
    mean: float
    longest: int


def measure_page(page: Path) -> Figures:
    """Count the words of a page and of its sentences."""
    words = [w for w in BLOCK.sub("", read_visible(page)).split() if re.search(r"\w", w)]
    lengths = [len(s.split()) for s in read_sentences(page)] or [0]
    return Figures(len(words), sum(lengths) / len(lengths), max(lengths))


def main() -> None:
    """Print a line for each page, and the sum."""
    figures = {page: measure_page(page) for page in PAGES}
    for page, of_page in figures.items():
        print(f"{of_page.words:6} {of_page.mean:5.1f} {of_page.longest:4}  {page.relative_to(ROOT)}")
    print(f"{sum(f.words for f in figures.values()):6}  of {MOST_WORDS}")


if __name__ == "__main__":
    main()
