"""Listings with line numbers, and the correspondence of a program, its CUDA and its machine code.

Each line carries the numbers of the program's lines it belongs to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from pygments import highlight
from pygments.lexer import Lexer
from pygments.lexers import CppLexer

from ..integrations.highlighting import CuirLexer
from ..lowering import Cuda
from ..lowering.lowered import KERNEL
from ..runtime.machine_code import Instruction
from ..text.source import Source, Span
from .program_html import FORMATTER


@dataclass(frozen=True)
class MappedLine:
    """Line of a text.

    Attributes:
        number: As a reader counts; an offset for an instruction.
        lines: Numbers of the program's lines that it belongs to.
    """

    number: str
    text: str
    lines: tuple[int, ...] = ()


@dataclass(frozen=True)
class CodeMap:
    """Lines of the program, of the CUDA text before its kernel and from it on, and instructions."""

    program: Sequence[MappedLine]
    prelude: Sequence[MappedLine]
    cuda: Sequence[MappedLine]
    sass: Sequence[MappedLine] = ()


def map_code(cuda: Cuda, instructions: Sequence[Instruction] = ()) -> CodeMap:
    """Return the correspondence of a lowered kernel.

    instructions: those of its cubin, where it was disassembled.
    """
    source = cuda.checked.origin.span.source
    of_cuda = {number: line for number, span in cuda.line_map.items() if (line := find_line(span, source)) is not None}
    texts = cuda.source.splitlines()
    begin = next((i for i, text in enumerate(texts) if text.startswith(KERNEL.split(" void")[0])), 0)
    lines = [MappedLine(str(i), text, (of_cuda[i],) if i in of_cuda else ()) for i, text in enumerate(texts, 1)]
    sass = [MappedLine(f"{i.offset:04x}", i.text, _find_statement(i, of_cuda)) for i in instructions]
    return CodeMap(list_program(source), lines[:begin], lines[begin:], sass)


def list_program(source: Source) -> list[MappedLine]:
    """Return the lines of a program, each of which belongs to itself."""
    texts = source.text.rstrip("\n").split("\n")
    return [MappedLine(str(n), text, (n,)) for n, text in enumerate(texts, source.first_line)]


def find_line(span: Span | None, source: Source) -> int | None:
    """Return the line of a span in a source; of an inlined function from elsewhere, that of the call."""
    while span is not None:
        if span.source == source:
            return span.line
        span = span.via
    return None


def _find_statement(i: Instruction, of_cuda: Mapping[int, int]) -> tuple[int, ...]:
    """Return the line of the innermost statement that an instruction comes from."""
    return next(((of_cuda[n],) for n in i.lines if n in of_cuda), ())


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
