"""Source text and positions in it: everything that points at text does so with a `Span`.

Places in a user's Python, from a function or an exception; imports nothing of the user's.
"""

from __future__ import annotations

import functools
import inspect
import linecache
import re
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LONG = 240  # columns of a line that is shown whole


@dataclass(frozen=True)
class Source:
    """A piece of CuIR text and the name that reports call it by (a path, or `<function name>`)."""

    name: str
    text: str = field(repr=False)
    first_line: int = 1  # line number of the first line, for a function inside a Python file

    @functools.cached_property
    def lines(self) -> tuple[str, ...]:
        return tuple(self.text.split("\n"))

    def line(self, number: int) -> str:
        """Return the text of a line, by the number that spans use (1-based, shifted by `first_line`)."""
        index = number - self.first_line
        return self.lines[index] if 0 <= index < len(self.lines) else ""


@dataclass(frozen=True, init=False)
class Span:
    """A half-open range of text: 1-based lines, 1-based columns.

    `via` is the call that an inlined `@func` came through.
    """

    source: Source = field(repr=False)
    line: int
    column: int
    end_line: int
    end_column: int
    via: Span | None = None

    def __init__(self, source: Source, line: int, column: int, end_line: int, end_column: int, via: Span | None = None):
        """Initialise as the generated method does, but four times as fast.

        Spans are a tenth of the time that checking a kernel takes.
        """
        parts = self.__dict__
        parts["source"], parts["line"], parts["column"] = source, line, column
        parts["end_line"], parts["end_column"], parts["via"] = end_line, end_column, via

    def __str__(self) -> str:
        return f"{self.source.name}:{self.line}:{self.column}"

    def text(self) -> str:
        """Return the first line of the spanned text."""
        stop = self.end_column - 1 if self.end_line == self.line else None
        return self.source.line(self.line)[self.column - 1 : stop]

    def first_line(self) -> Span:
        """Return the first line of a span, for errors about something long."""
        if self.line == self.end_line:
            return self
        return Span(self.source, self.line, self.column, self.line, len(self.source.line(self.line).split("#")[0].rstrip()) + 1)

    def through(self, call: Span) -> Span:
        """Return this span, reached by inlining at `call` (appended at the outermost end of the chain)."""
        via = call if self.via is None else self.via.through(call)
        return Span(self.source, self.line, self.column, self.end_line, self.end_column, via)


def caret(span: Span) -> str:
    """Return the source line with carets below the spanned part, as shown in a terminal."""
    line, column = span.source.line(span.line), span.column
    stop = span.end_column if span.end_line == span.line else len(line) + 1
    if len(line) > LONG:  # a window of it
        first = max(0, min(column - 1 - LONG // 2, len(line) - LONG))
        line, column, stop = f"...{line[first : first + LONG]}...", column - first + 3, min(stop - first + 3, LONG + 7)
    width = max(1, stop - column)
    return f"{span.line:5d} | {line}\n      | {' ' * (column - 1)}{'^' * width}"


def spell_name(name: str, span: Span) -> str:
    """Return a flat name as spelled in the text at `span`: inlining appends numbers to names."""
    base = re.sub(r"(_\d+)+$", "", name)
    return base if re.search(rf"\b{base}\b", span.text()) else name


def function_span(function: Callable[..., Any]) -> Span | None:
    """Return the start of a Python function's definition."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return None
    source = _source(code.co_filename)
    line = source.line(code.co_firstlineno)
    start = len(line) - len(line.lstrip()) + 1
    return Span(source, code.co_firstlineno, start, code.co_firstlineno, max(start + 1, len(line) + 1))


def user_span(error: BaseException, path: str | None = None) -> Span | None:
    """Return the innermost line of user code that an exception passed through.

    path: only lines of this file count, if one is named.
    """
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        source = _source(error.filename)
        column = error.offset or 1
        return Span(source, error.lineno, column, error.lineno, max(column + 1, error.end_offset or 0))
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        is_user_code = frame.filename == path if path else not frame.filename.startswith((str(Path(__file__).parent.parent), "<"))
        if is_user_code and "/torch/" not in frame.filename and frame.lineno:
            column = (frame.colno or 0) + 1
            one_line = frame.end_lineno == frame.lineno and frame.end_colno
            return Span(_source(frame.filename), frame.lineno, column, frame.lineno, (frame.end_colno or 0) + 1 if one_line else column + 1)
    return None


def line_span(filename: str, number: int, column: int | None = None) -> Span:
    """Return the span of a line of a file, or of one column of it, counted from 0 behind its indentation."""
    source = _source(filename)
    line = source.line(number)
    start = len(line) - len(line.lstrip()) + 1
    if column is not None:
        return Span(source, number, start + column, number, start + column + 1)
    return Span(source, number, start, number, start + max(1, len(line.strip())))


def _source(filename: str) -> Source:
    return Source(filename, "".join(linecache.getlines(filename)))
