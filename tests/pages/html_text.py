"""Visible text of HTML, and requests that a page would send to a network."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser

OUTSIDE = re.compile(r"""(?:src|href|action)=["']?(?:https?:)?//|url\(|@import""")


def read_text(page: str) -> str:
    """Return the text of HTML, without tags, styles and scripts."""
    return html.unescape(re.sub(r"<[^>]+>", "", re.sub(r"<(style|script)\b.*?</\1>", "", page, flags=re.DOTALL)))


def read_section(page: str, anchor: str) -> str:
    """Return the text of a section."""
    return read_text(page.split(f'<section id="{anchor}">')[1].split("</section>")[0])


def assert_well_formed(page: str) -> None:
    """Assert that every element is closed in its order."""
    _Elements().feed(page)


class _Elements(HTMLParser):
    VOID = frozenset({"meta", "br", "input", "img", "col", "hr"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> at {self.getpos()} closes {self.open[-1:]}"
        self.open.pop()

    def feed(self, data: str) -> None:
        super().feed(data)
        assert not self.open, f"not closed: {self.open}"
