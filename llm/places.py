"""Places of a report in the file that a person wrote, where a pass knows a program by its canonical text. Owns the correspondence, not the report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from cuir.syntax.nodes import Program
from cuir.syntax.parser import parse
from cuir.syntax.walk import walk
from cuir.text.diagnostics import Diagnostic
from cuir.text.source import Source, Span

from .answer import NAME


def in_file(diagnostics: Iterable[Diagnostic], program: Program, others: str) -> tuple[Diagnostic, ...]:
    """Diagnostics of an answer that holds the definitions of `program`, with the places that these have where they were written.

    others: what places in other definitions of that text are called by, which `program` does not hold.
    """
    known = dict[Source, list[tuple[Span, Span]]]()

    def moved(span: Span | None) -> Span | None:
        if span is None or span.source.name != NAME:
            return span
        if span.source not in known:
            known[span.source] = list(_pairs(span.source, program))
        around = [(_extent(there), here) for there, here in known[span.source] if _covers(there, span)]
        if around:
            return replace(min(around, key=lambda pair: pair[0])[1], via=moved(span.via))
        return replace(span, source=replace(span.source, name=others), via=moved(span.via))

    return tuple(replace(d, span=moved(d.span), notes=tuple(replace(n, span=moved(n.span)) for n in d.notes)) for d in diagnostics)


def _pairs(source: Source, program: Program) -> Iterator[tuple[Span, Span]]:
    """Spans of the same node in a text and in the program that it was made of."""
    written = {item.name: item for item in program.items}
    for item in parse(source.text, source.name).items:
        if item.name in written:
            for there, here in zip(walk(item), walk(written[item.name])):
                if type(there) is not type(here):
                    break  # a definition of the same name that says something else
                yield there.span, here.span


def _covers(outer: Span, inner: Span) -> bool:
    return (outer.line, outer.column) <= (inner.line, inner.column) and (inner.end_line, inner.end_column) <= (
        outer.end_line,
        outer.end_column,
    )


def _extent(span: Span) -> tuple[int, int]:
    """By which the innermost of nested spans is the least."""
    return span.end_line - span.line, span.end_column - span.column if span.end_line == span.line else -span.column
