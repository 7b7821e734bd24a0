"""Listings with line numbers; each line carries the numbers of the program's lines it belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from pygments import highlight
from pygments.lexer import Lexer
from pygments.lexers import CppLexer

from ..integrations.highlighting import CuirLexer
from ..text.source import Source
from .code_map import CodeMap, MappedLine, list_program
from .program_html import FORMATTER


def render_listing(source: Source) -> str:
    """Render the text of a program with line numbers."""
    return f'<div class="code program">{_render_lines(list_program(source), CuirLexer(stripnl=False, stripall=False))}</div>'


def render_map(code: CodeMap, missing: str = "") -> str:
    """Render program, CUDA and SASS beside each other; a click on a line marks its counterparts.

    missing: reason why there is no SASS.
    """
    columns = [
        f'<div><h4>CuIR</h4><div class="code program">{_render_lines(code.program, CuirLexer(stripnl=False, stripall=False))}</div></div>',
        f'<div><h4>CUDA</h4><div class="code cuda"><details><summary>{len(code.prelude)} lines of device functions</summary>'
        f"{_render_lines(code.prelude, CppLexer(stripnl=False))}</details>{_render_lines(code.cuda, CppLexer(stripnl=False))}</div></div>",
    ]
    if code.sass:
        columns.append(f'<div><h4>SASS</h4><div class="code sass">{_render_lines(code.sass, None)}</div></div>')
    note = f" No SASS: {escape(missing)}." if missing and not code.sass else ""
    return (
        f'<div class="map"><p>Click on a line: what it became, or came from, is marked.{note} <b class="chosen"></b></p>'
        f'<div class="columns">{"".join(columns)}</div></div>'
    )


def _render_lines(lines: Sequence[MappedLine], lexer: Lexer | None) -> str:
    text = "\n".join(line.text for line in lines)
    marked = highlight(text, lexer, FORMATTER).removesuffix("\n").split("\n") if lexer is not None else []
    if len(marked) != len(lines):  # no lexer, or one that joins lines
        marked = [escape(line.text) for line in lines]
    return "".join(f'<span class="l" data-n="{line.number}"{_name_lines(line)}>{html or " "}</span>' for line, html in zip(lines, marked))


def _name_lines(line: MappedLine) -> str:
    return f' data-cuir="{" ".join(map(str, line.lines))}"' if line.lines else ""
