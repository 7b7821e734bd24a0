"""Tables of Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table.

    A cell takes one line, and a bar in it is no border.
    """
    return [_render_line(head), "|" + "---|" * len(head), *map(_render_line, rows)]


def _render_line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(" ".join(cell.split("\n")).replace("|", "\\|") for cell in cells) + " |"
