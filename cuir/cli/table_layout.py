"""Lines of plain tables: columns that fit a terminal, or one line a row for programs that read them."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence

GAP = 2  # spaces between columns
NARROWEST = 12  # characters below which no column is wrapped
EMPTY = "-"  # an empty cell, where columns are counted
SEPARATOR = re.compile(r"\s+|(?<=,)")  # of the parts of a cell that stay whole: lists of settings have commas alone
Line = list[str]  # cells of a line, padded


class _Wrapper(textwrap.TextWrapper):
    """Wrapper that may break behind commas, too."""

    def _split(self, text: str) -> list[str]:
        return [part for chunk in super()._split(text) for part in re.split(r"(?<=,)", chunk) if part]


def layout_table(head: Sequence[str], rows: Iterable[Sequence[object]], width: int | None) -> list[Line]:
    """Return the lines of a table, each as its padded cells.

    Args:
        head: Names of the columns, all empty for none.
        rows: Cells.
        width: Columns of the terminal, within which cells wrap; None for one line a row, where no cell is empty.
    """
    cells = [[_flatten(cell, width is None) for cell in row] for row in ([head] if any(head) else [])] + [
        [_flatten(cell, width is None) for cell in row] for row in rows
    ]
    columns = max((len(row) for row in cells), default=0)
    cells = [row + [""] * (columns - len(row)) for row in cells]
    natural = [max((len(part) for row in cells for part in row[c].split("\n")), default=0) for c in range(columns)]
    longest_words = [max((len(word) for row in cells for word in SEPARATOR.split(row[c])), default=0) for c in range(columns)]
    widths = natural if width is None else fit_widths(natural, longest_words, width - GAP * (columns - 1))
    return [line for row in cells for line in _wrap_row(row, widths)]


def fit_widths(natural: Sequence[int], words: Sequence[int], total: int) -> list[int]:
    """Return widths of columns whose sum is at most `total`, if columns of NARROWEST allow it.

    The widest columns are narrowed first, all alike. Words are cut only where they do not fit otherwise.
    """
    widths = list(natural)
    for least in ([max(NARROWEST, word) for word in words], words, [NARROWEST] * len(widths)):
        widths = _narrow(widths, least, total)
    return widths


def _narrow(widths: Sequence[int], least: Sequence[int], total: int) -> list[int]:
    """Narrow columns until the sum of their widths is at most `total`.

    Those that are wider than their least width are narrowed, the widest first.
    """
    widths = list(widths)
    while sum(widths) > total and (wide := [c for c, w in enumerate(widths) if w > least[c]]):
        widest = max(wide, key=lambda c: widths[c])
        rivals = [widths[c] for c in wide if c != widest]
        below = max(rivals, default=0)
        widths[widest] = max(least[widest], min(below, widths[widest] - 1), widths[widest] - (sum(widths) - total))
    return widths


def _flatten(cell: object, single: bool) -> str:
    """Return the text of a cell: one line that is not empty, where rows are lines."""
    text = str(cell)
    return (" ".join(text.split()) if "\n" in text else text.strip()) or EMPTY if single else text


def _wrap_row(row: Sequence[str], widths: Sequence[int]) -> list[Line]:
    """Return the lines of a row."""
    wrapped = [_wrap(cell, width) for cell, width in zip(row, widths)]
    lines = []
    for i in range(max(map(len, wrapped), default=0)):
        parts = [cell[i] if i < len(cell) else "" for cell in wrapped]
        last = max((c for c, part in enumerate(parts) if part), default=0)
        lines.append([part.ljust(width + GAP) if c < last else part for c, (part, width) in enumerate(zip(parts, widths)) if c <= last])
    return lines


def _wrap(text: str, width: int) -> list[str]:
    """Return a cell as lines of at most `width` characters; words that are longer are cut."""
    lines: list[str] = []
    for line in text.split("\n"):
        lines += [line] if len(line) <= width else _Wrapper(width, break_on_hyphens=False).wrap(line) or [""]
    return lines
