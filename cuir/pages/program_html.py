"""Programs and differences as highlighted HTML; definitions fold."""

from __future__ import annotations

import difflib
from html import escape

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexer import Lexer
from pygments.lexers import CppLexer

from ..integrations.highlighting import CuirLexer
from ..syntax.nodes import Func, Kernel, Program
from ..syntax.printer import show

_FORMATTER = HtmlFormatter(noclasses=True, style="friendly", nowrap=True)
_PRE = '<pre style="margin:0;line-height:1.35;overflow-x:auto">'


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


def render_diff(before: str, after: str) -> str:
    """Render two texts beside each other: lines that differ coloured, long equal stretches left out."""
    rows = []
    for group in difflib.SequenceMatcher(None, before.splitlines(), after.splitlines(), autojunk=False).get_grouped_opcodes(3):
        rows.append('<tr><td colspan="2" class="gap">&hellip;</td></tr>')
        for tag, a, b, c, d in group:
            left, right = before.splitlines()[a:b], after.splitlines()[c:d]
            for i in range(max(len(left), len(right))):
                old, new = (x[i] if i < len(x) else "" for x in (left, right))
                classes = ("", "") if tag == "equal" else ("old" * (i < len(left)), "new" * (i < len(right)))
                rows.append(f'<tr><td class="{classes[0]}">{_line(old)}</td><td class="{classes[1]}">{_line(new)}</td></tr>')
    return f'<table class="diff">{"".join(rows)}</table>' if rows else "<p>The programs are equal.</p>"


def _block(text: str, lexer: Lexer | None = None) -> str:
    return f"{_PRE}{highlight(text, lexer or CuirLexer(), _FORMATTER)}</pre>"


def _line(text: str) -> str:
    return f"<code>{highlight(text, CuirLexer(stripnl=False, stripall=False), _FORMATTER).rstrip(chr(10))}</code>"
