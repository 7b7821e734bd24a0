"""Programs and CUDA as highlighted HTML; definitions fold.

Differences of programs as HTML: two texts beside each other.

Lines that differ are coloured, equal stretches are folded.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from html import escape

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexer import Lexer
from pygments.lexers import CppLexer, TextLexer

from ..integrations.highlighting import CuirLexer
from ..syntax.nodes import Func, Kernel, Program
from ..syntax.printer import show

FORMATTER = HtmlFormatter(noclasses=True, style="friendly", nowrap=True)


def render_program(program: Program) -> str:
    """Render a program: the text of a kernel open, functions folded under their first lines."""
    parts = []
    for item in program.items:
        text = show(item)
        if isinstance(item, Func | Kernel):
            is_open = " open" if isinstance(item, Kernel) else ""
            count = len(text.splitlines())
            parts.append(f"<details{is_open}><summary><code>{escape(item.name)}</code>, {count} lines</summary>{_block(text)}</details>")
        else:
            parts.append(_block(text))
    return "\n".join(parts)


def render_cuda(text: str) -> str:
    """Render CUDA C++."""
    return _block(text, CppLexer())


def render_text(text: str, language: str) -> str:
    """Render the block of a message; a language that is not known, or none, is CuIR's."""
    return _block(text, CppLexer() if language in ("cuda", "cpp", "c++", "c") else TextLexer() if language in ("text", "diff") else None)


def _block(text: str, lexer: Lexer | None = None) -> str:
    return f"<pre>{highlight(text, lexer or CuirLexer(), FORMATTER)}</pre>"


_CONTEXT = 3  # equal lines that stay open on each side of a difference
_HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@")

Side = tuple[int | None, str]  # line number and text; no number where the other side has more lines
Pair = tuple[Side, Side, bool]  # and True if they are equal


def render_diff(before: str, after: str) -> str:
    """Render two texts beside each other; long equal stretches fold."""
    pairs = list(_pair_lines(before.splitlines(), after.splitlines()))
    if all(equal for _, _, equal in pairs):
        return "<p>The programs are equal.</p>"
    parts: list[str] = []
    for run, equal in _group_runs(pairs):
        if not equal or len(run) <= 2 * _CONTEXT + 1:
            parts.append(_render_pairs(run))
            continue
        head = run[:_CONTEXT] if parts else []
        tail = run[-_CONTEXT:] if run[-1] is not pairs[-1] else []
        folded = run[len(head) : len(run) - len(tail)]
        parts += [
            _render_pairs(head),
            f'<details class="same"><summary>{len(folded)} equal lines</summary>{_render_pairs(folded)}</details>',
            _render_pairs(tail),
        ]
    return f'<div class="difference">{"".join(parts)}</div>'


def render_unified_diff(diff: str) -> str:
    """Render a unified diff with its two sides beside each other; heads of files are left out."""
    parts: list[str] = []
    old: list[Side] = []
    new: list[Side] = []
    pairs: list[Pair] = []
    left = right = 1

    def flush() -> None:
        pairs.extend(_zip_sides(old, new))
        old.clear()
        new.clear()

    for line in diff.splitlines():
        if line.startswith(("--- ", "+++ ")) and not pairs and not parts:
            continue
        if hunk := _HUNK.match(line):
            flush()
            parts.append(_render_pairs(pairs))
            pairs, left, right = [], int(hunk[1]), int(hunk[2])
        elif line.startswith("-"):
            old.append((left, line[1:]))
            left += 1
        elif line.startswith("+"):
            new.append((right, line[1:]))
            right += 1
        else:
            flush()
            pairs.append(((left, line[1:]), (right, line[1:]), True))
            left, right = left + 1, right + 1
    flush()
    parts.append(_render_pairs(pairs))
    return f'<div class="difference">{"".join(parts)}</div>'


def _pair_lines(left: Sequence[str], right: Sequence[str]) -> Iterable[Pair]:
    for tag, a, b, c, d in difflib.SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        old, new = [(i + 1, left[i]) for i in range(a, b)], [(i + 1, right[i]) for i in range(c, d)]
        if tag == "equal":
            yield from ((x, y, True) for x, y in zip(old, new))
        else:
            yield from _zip_sides(old, new)


def _zip_sides(old: Sequence[Side], new: Sequence[Side]) -> Iterable[Pair]:
    for i in range(max(len(old), len(new))):
        yield (old[i] if i < len(old) else (None, "")), (new[i] if i < len(new) else (None, "")), False


def _group_runs(pairs: Sequence[Pair]) -> Iterable[tuple[list[Pair], bool]]:
    run: list[Pair] = []
    for pair in pairs:
        if run and run[-1][2] != pair[2]:
            yield run, run[-1][2]
            run = []
        run.append(pair)
    if run:
        yield run, run[-1][2]


def _render_pairs(pairs: Sequence[Pair]) -> str:
    if not pairs:
        return ""
    rows = "".join(f"<tr>{_render_side(x, equal, 'old')}{_render_side(y, equal, 'new')}</tr>" for x, y, equal in pairs)
    return f'<table class="diff"><colgroup><col class="n"><col><col class="n"><col></colgroup>{rows}</table>'


def _render_side(side: Side, equal: bool, changed: str) -> str:
    number, text = side
    if number is None:
        return '<td class="n"></td><td class="void"></td>'
    code = highlight(text, CuirLexer(stripnl=False, stripall=False), FORMATTER).rstrip("\n")
    return f'<td class="n">{number}</td><td class="{"" if equal else changed}"><code>{code}</code></td>'
