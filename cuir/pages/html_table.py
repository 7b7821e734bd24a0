"""Tables as HTML: texts are escaped, numbers stand to the right."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

_NUMBER = re.compile(r"[-+]?\$?[\d,]+(\.\d+)?(e[-+]?\d+)?%?( of [\d,]+|/\d+| s| \([\d.]+\))?")


@dataclass(frozen=True)
class Html:
    """Cell that is HTML already."""

    text: str


Cell = str | Html


def render_table(head: Sequence[str], rows: Iterable[Sequence[Cell]], classes: str = "") -> str:
    """Render a table; "" without rows.

    Columns without content are left out, those of numbers are aligned to the right.
    """
    all_lines = [list(row) for row in rows]
    used = [c for c in range(len(head)) if any(line[c : c + 1] not in ([], [""]) for line in all_lines)]
    head, lines = [head[c] for c in used], [[line[c] for c in used if c < len(line)] for line in all_lines]
    if not lines:
        return ""
    right = [all(isinstance(r[c], str) and (r[c] in ("", "-") or _is_number(r[c])) for r in lines if c < len(r)) for c in range(len(head))]
    style = [' class="number"' if is_number else "" for is_number in right]
    top = "".join(f"<th{style[c]}>{escape(title)}</th>" for c, title in enumerate(head))
    body = "".join(f"<tr>{''.join(f'<td{style[c]}>{render_cell(x)}</td>' for c, x in enumerate(r))}</tr>\n" for r in lines)
    return f'<div class="wide"><table class="data {classes}"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def render_cell(cell: Cell) -> str:
    """Render a cell's content."""
    return cell.text if isinstance(cell, Html) else escape(cell)


def render_fields(fields: Iterable[tuple[str, object]]) -> str:
    """Render names and values as lines; those without a value are left out."""
    rows = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>" for name, value in fields if value not in (None, "", ())
    )
    return f"<table>{rows}</table>"


def _is_number(cell: Cell) -> bool:
    return isinstance(cell, str) and _NUMBER.fullmatch(cell) is not None
