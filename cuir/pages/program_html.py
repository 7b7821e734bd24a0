"""Programs and CUDA as highlighted HTML; definitions fold."""

from __future__ import annotations

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
