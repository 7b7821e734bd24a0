"""Places in a user's Python, from a function or an exception; imports nothing of the user's."""

from __future__ import annotations

import inspect
import linecache
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .source import Source, Span


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
