"""Translation of places in a program's canonical text to places in the file that a person wrote."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from cuir.syntax.nodes import Program
from cuir.syntax.parser import parse
from cuir.syntax.walk import walk
from cuir.text.diagnostics import Diagnostic
from cuir.text.source import Source, Span

from .answer import NAME


def in_file(diagnostics: Iterable[Diagnostic], program: Program, fallback: str) -> tuple[Diagnostic, ...]:
    """Return diagnostics of an answer with spans in the file where `program` was written.

    The answer holds the definitions of `program`. `others` is the source name for spans in definitions that `program`
    lacks.
    """
    span_pairs = dict[Source, list[tuple[Span, Span]]]()

    def move_span(span: Span | None) -> Span | None:
        """Return the span in the file that corresponds to a span of the answer."""
        if span is None or span.source.name != NAME:
            return span
        if span.source not in span_pairs:
            span_pairs[span.source] = list(_pairs(span.source, program))
        around = [(_extent(answer_span), file_span) for answer_span, file_span in span_pairs[span.source] if _covers(answer_span, span)]
        if around:
            return replace(min(around, key=lambda pair: pair[0])[1], via=move_span(span.via))
        return replace(span, source=replace(span.source, name=fallback), via=move_span(span.via))

    return tuple(replace(d, span=move_span(d.span), notes=tuple(replace(n, span=move_span(n.span)) for n in d.notes)) for d in diagnostics)


def _pairs(source: Source, program: Program) -> Iterator[tuple[Span, Span]]:
    """Yield spans of the same node in a text and in the program that it was printed from."""
    written = {item.name: item for item in program.items}
    for item in parse(source.text, source.name).items:
        if item.name in written:
            for printed_node, written_node in zip(walk(item), walk(written[item.name])):
                if type(printed_node) is not type(written_node):
                    break  # a definition of the same name that says something else
                yield printed_node.span, written_node.span


def _covers(outer: Span, inner: Span) -> bool:
    """Return whether a span contains another."""
    return (outer.line, outer.column) <= (inner.line, inner.column) and (inner.end_line, inner.end_column) <= (
        outer.end_line,
        outer.end_column,
    )


def _extent(span: Span) -> tuple[int, int]:
    """Return a key by which the innermost of nested spans is the least."""
    return span.end_line - span.line, span.end_column - span.column if span.end_line == span.line else -span.column
