"""One self-contained page: sections with titles, styles within, nothing from a network."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader, select_autoescape

from ..text.diagnostics import CuirError
from .timeline_picture import ROW, WIDTH

_SIZES = {"timeline_width": WIDTH, "timeline_row": ROW}


@dataclass(frozen=True)
class Section:
    """Part of a page. body: HTML."""

    title: str
    body: str

    @property
    def anchor(self) -> str:
        """Name by which the navigation links to it."""
        return re.sub(r"\W+", "-", self.title.lower()).strip("-")


@functools.cache
def _environment() -> Environment:
    return Environment(loader=PackageLoader("cuir.pages"), autoescape=select_autoescape(default=True))


def render_page(title: str, subtitle: str, sections: Sequence[Section]) -> str:
    """Render a page; texts are escaped, bodies of sections are HTML."""
    environment = _environment()
    return environment.get_template("page.html.j2").render(title=title, subtitle=subtitle, sections=sections, **_SIZES)


def render_fragment(body: str) -> str:
    """Return HTML of a page's section with the styles and the script of pages, for a notebook."""
    return _environment().get_template("fragment.html.j2").render(body=body, **_SIZES)


def write_page(path: Path, text: str) -> None:
    """Write a page. Raises CuirError U108."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CuirError.of("U108", f"cannot write {path}: {error.strerror}", hint="name another file") from None
