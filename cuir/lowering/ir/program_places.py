"""Places of a program in its IR: the spans of locations, which CUDA's comments and errors show."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from xdsl.dialects.builtin import FileLineColLoc, IntAttr, StringAttr
from xdsl.ir import Data, Operation
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.lexer import Span as TextSpan

from ...text.source import Source, Span

Key = tuple[str, int, int]  # file, line and column: what a location holds


def make_key(span: Span) -> Key:
    """Return the key of a span: its first character."""
    return span.source.name, span.line, span.column


@functools.lru_cache(maxsize=4096)
def make_location(key: Key) -> FileLineColLoc:
    """Return a place as the location of an operation."""
    file, line, column = key
    return FileLineColLoc(StringAttr(file), IntAttr(line), IntAttr(column))


def key_of(op: Operation) -> Key | None:
    """Return the place of an operation; None if it has none."""
    location = op.location
    return (location.filename.data, location.line.data, location.column.data) if isinstance(location, FileLineColLoc) else None


@irdl_attr_definition
class Places(Data[Mapping[Key, Span]]):
    """The spans of a kernel's locations.

    In text each file has its lines, and behind a line its spans: `at 9 to 34` is of columns, `to 14:2` of a line and a
    column, and `via` is the call through which an inlined function came.
    """

    name = "tile.places"

    def find(self, op: Operation) -> Span | None:
        """Return the span of an operation, None if it has no place."""
        key = key_of(op)
        return None if key is None else self.data.get(key)

    def print_parameter(self, printer: Printer) -> None:
        files: dict[str, dict[int, list[Span]]] = {}
        lines: dict[tuple[str, int], str] = {}
        for span in self.data.values():
            files.setdefault(span.source.name, {}).setdefault(span.line, []).append(span)
            step: Span | None = span
            while step is not None:
                files.setdefault(step.source.name, {}).setdefault(step.line, [])
                lines.setdefault((step.source.name, step.line), step.source.line(step.line))
                step = step.via
        numbers = {file: n for n, file in enumerate(files)}
        with printer.in_braces():
            for file, spans in files.items():
                printer.print_string("\n  ")
                printer.print_string_literal(file)
                for line in sorted(spans):
                    printer.print_string(f"\n    {line} ")
                    printer.print_string_literal(lines[file, line])
                    for span in spans[line]:
                        printer.print_string(f" at {span.column}{_format_end(span)}")
                        via = span.via
                        while via is not None:
                            printer.print_string(f" via {numbers[via.source.name]}:{via.line}:{via.column}{_format_end(via)}")
                            via = via.via
            printer.print_string("\n")

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Mapping[Key, Span]:
        texts: list[tuple[str, dict[int, str]]] = []
        spans: list[list[tuple[int, int, int, int, int]]] = []  # of a place and the calls that it came through: file, line, column, end
        numbers: list[tuple[int, TextSpan]] = []  # of files, with their places in the text
        parser.parse_punctuation("{")
        while parser.parse_optional_punctuation("}") is None:
            texts.append((parser.parse_str_literal("the name of a file"), {}))
            while (line := parser.parse_optional_integer()) is not None:
                texts[-1][1][line] = parser.parse_str_literal("the text of a line")
                while parser.parse_optional_keyword("at"):
                    chain = [(len(texts) - 1, line, *_parse_end(parser, line))]
                    while parser.parse_optional_keyword("via"):
                        begin = parser._current_token.span
                        file, start = parser.parse_integer(), _parse_next(parser)
                        numbers.append((file, begin))
                        parser.parse_punctuation(":")
                        chain.append((file, start, *_parse_end(parser, start)))
                    spans.append(chain)
        for number, begin in numbers:
            if not 0 <= number < len(texts):
                parser.raise_error(f"expected the number of a file, less than {len(texts)}, found {number}", begin)
        sources = [_make_source(name, lines) for name, lines in texts]
        result: dict[Key, Span] = {}
        for chain in spans:
            span: Span | None = None
            for file, line, column, end_line, end_column in reversed(chain):
                span = Span(sources[file], line, column, end_line, end_column, span)
            assert span is not None
            result[make_key(span)] = span
        return result


def _format_end(span: Span) -> str:
    return f" to {span.end_column}" if span.end_line == span.line else f" to {span.end_line}:{span.end_column}"


def _parse_next(parser: AttrParser) -> int:
    parser.parse_punctuation(":")
    return parser.parse_integer()


def _parse_end(parser: AttrParser, line: int) -> tuple[int, int, int]:
    """Parse the rest of a span that begins in a line: its column, the line and the column of its end."""
    column = parser.parse_integer()
    parser.parse_keyword("to")
    end = parser.parse_integer()
    return (column, end, parser.parse_integer()) if parser.parse_optional_punctuation(":") else (column, line, end)


def _make_source(name: str, lines: Mapping[int, str]) -> Source:
    """Return a file of which some lines are known; the others are empty."""
    first, last = min(lines, default=1), max(lines, default=1)
    return Source(name, "\n".join(lines.get(i, "") for i in range(first, last + 1)), first)


__all__ = ["Key", "Places", "key_of", "make_key", "make_location"]
