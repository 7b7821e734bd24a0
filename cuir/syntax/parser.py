"""Parser: CuIR text -> AST, by the Lark grammar in `grammar.lark`, with spans and comments.

Nothing in the text is ever evaluated or imported. What the grammar accepts beyond the language is refused in
`build.py`; `hints.py` describes what it does not accept.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from pathlib import Path

from lark import Lark, Token
from lark.exceptions import UnexpectedInput
from lark.indenter import DedentError, PythonIndenter

from ..caching import memoize
from ..text.diagnostics import CuirError, Sink
from ..text.source import Source, Span
from .build import Builder
from .hints import explain
from .lalr import PLUGINS
from .nodes import Program

LONGEST, ERRORS = 2**20, 50  # most characters of a text; most syntax errors reported: each takes another parse
_LOCK = threading.RLock()  # the parser below, its indenter and its builder are shared and hold the state of one parse


class _BadDedent(Exception):
    def __init__(self, token: Token):
        super().__init__(str(token))
        self.token = token


class _Indenter(PythonIndenter):
    def handle_NL(self, token: Token) -> Iterator[Token]:  # noqa: N802 - Lark's name
        try:
            yield from super().handle_NL(token)
        except DedentError:
            raise _BadDedent(token) from None


class _Machine:
    """The generated parser with the builder that it calls at each reduction."""

    def __init__(self) -> None:
        self.builder = Builder()
        grammar = (Path(__file__).parent / "grammar.lark").read_text(encoding="utf-8")
        self.lark = Lark(
            grammar,
            parser="lalr",
            lexer="contextual",
            start="program",
            postlex=_Indenter(),
            transformer=self.builder,
            keep_all_tokens=True,
            maybe_placeholders=False,
            _plugins=PLUGINS,
        )


@functools.cache
def _get_machine() -> _Machine:
    return _Machine()


def parse(text: str, name: str = "<text>", first_line: int = 1) -> Program:
    """Parse a CuIR text.

    `name` is what reports call the text (a path), `first_line` the number of its first line there. Raises CuirError
    with the first syntax error of each definition, and every violation of the rules of form (codes P... and N00.).
    """
    if not isinstance(text, str):
        raise CuirError.of(
            "U208", f"cuir.parse takes the text of a program, found {type(text).__name__}", hint="cuir.load(path) reads a file"
        )
    if len(text) > LONGEST:
        raise CuirError.of("P019", f"{name} has {len(text):,} characters, a program at most {LONGEST:,}")
    return _parse_cached(name, text.replace("\r\n", "\n"), first_line)


# Trees are immutable, and the candidates of a search, or the mutants of a kernel, parse one text again and again.
@memoize(128)
def _parse_cached(name: str, text: str, first_line: int) -> Program:
    return parse_source(Source(name, text, first_line))


def parse_source(source: Source, text: str | None = None, indent: int = 0) -> Program:
    """Parse `text` (default: the source's), whose lines lack `indent` columns on the left of the source's."""
    text = source.text if text is None else text
    sink = Sink()
    lines = text.split("\n")
    program: Program | None = None
    first = next((i for i, content in enumerate(lines) if content.strip() and not content.lstrip().startswith("#")), 0)
    if lines[first][:1] == " ":
        width = len(lines[first]) - len(lines[first].lstrip(" "))
        sink.error(
            "P003",
            "the first line of a program is not indented",
            _make_span(source, indent, first + 1, 1, first + 1, width + 1),
            "remove the blanks",
        )
        sink.stop_if_any()
    with _LOCK:
        start: int | None = 0
        while start is not None and len(sink.diagnostics) < ERRORS:
            # Lines before `start` are blanked, so that positions stay.
            part = "\n".join([""] * start + lines[start:])
            program, start = _try_parse(source, part, indent, sink, start)
    sink.diagnostics.sort(key=lambda d: (d.span.line, d.span.column) if d.span else (0, 0))
    sink.stop_if_any()
    assert program is not None
    return program


def _try_parse(source: Source, text: str, indent: int, sink: Sink, start: int) -> tuple[Program | None, int | None]:
    """Parse once: return the program, or None and the line to go on with after a syntax error.

    That is the index of the line of the next definition.
    """
    machine = _get_machine()
    machine.builder.begin(source, text, indent, sink)
    try:
        return machine.lark.parse(text if text.endswith("\n") else text + "\n"), None  # type: ignore[return-value]
    except UnexpectedInput as error:
        diagnostic, line = explain(error, text, functools.partial(_make_span, source, indent))
    except _BadDedent as error:
        line, column = error.token.end_line or 1, error.token.end_column or 1
        span = _make_span(source, indent, line, column, line, column + 1)
        diagnostic = CuirError.of(
            "P003",
            "this line is indented less than its block, but not as far as any block around it",
            span,
            "line it up with an earlier line",
        ).diagnostics[0]
    sink.diagnostics.append(diagnostic)
    following = (i for i, content in enumerate(text.split("\n")) if i >= max(line - 1, start + 1) and content.startswith("@"))
    return None, next(following, None)


def _make_span(source: Source, indent: int, line: int, column: int, end_line: int, end_column: int) -> Span:
    shift = source.first_line - 1
    return Span(source, line + shift, column + indent, end_line + shift, end_column + indent)
