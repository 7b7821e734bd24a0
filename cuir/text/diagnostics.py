"""Errors as values: collected by the passes, rendered as text or JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .source import Source, Span, caret


@dataclass(frozen=True)
class Note:
    """Another party to an error, and its place."""

    message: str
    span: Span | None = None


@dataclass(frozen=True)
class Diagnostic:
    """One error for people and tools.

    `code` is stable (listed in `cuir/text/codes.py`); `message` states what was expected, then what was found; `hint`
    states what to do. `severity` is "error" or "warning".
    """

    code: str
    message: str
    span: Span | None = None
    notes: tuple[Note, ...] = ()
    hint: str | None = None
    severity: str = "error"

    def __str__(self) -> str:
        return self.render()

    def render(self) -> str:
        place = f"{self.span}: " if self.span else ""
        parts = [f"{place}{self.severity}[{self.code}]: {self.message}"]
        if self.span:
            parts.append(caret(self.span))
            parts.extend(_render_chain(self.span))
        for note in self.notes:
            parts.append(f"{note.span}: note: {note.message}" if note.span else f"     = note: {note.message}")
            if note.span:
                parts.append(caret(note.span))
        if self.hint:
            parts.append(f"     = hint: {self.hint}")
        return "\n".join(parts)

    def as_json(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "message": self.message,
            "span": span_json(self.span),
            "notes": [{"message": n.message, "span": span_json(n.span)} for n in self.notes],
            "hint": self.hint,
        }


def write_diagnostic(d: Diagnostic) -> dict[str, Any]:
    """Return a diagnostic as JSON from which `read_diagnostic` makes one that is shown alike, without its files."""
    notes = [[n.message, _write_span(n.span)] for n in d.notes]
    return {"code": d.code, "message": d.message, "span": _write_span(d.span), "notes": notes, "hint": d.hint, "severity": d.severity}


def read_diagnostic(data: Mapping[str, Any]) -> Diagnostic:
    """Return the diagnostic that `write_diagnostic` wrote; its sources hold the lines that are shown."""
    notes = tuple(Note(message, _read_span(span)) for message, span in data["notes"])
    return Diagnostic(data["code"], data["message"], _read_span(data["span"]), notes, data["hint"], data["severity"])


def _write_span(span: Span | None) -> list[Any] | None:
    if span is None:
        return None
    return [span.source.name, span.source.line(span.line), span.line, span.column, span.end_line, span.end_column, _write_span(span.via)]


def _read_span(data: Sequence[Any] | None) -> Span | None:
    if data is None:
        return None
    name, text, line, column, end_line, end_column, via = data
    return Span(Source(name, text, line), line, column, end_line, end_column, _read_span(via))


def _render_chain(span: Span) -> list[str]:
    parts, via = [], span.via
    while via:
        parts.append(f"{via}: note: in the call `{via.text()}`")
        via = via.via
    return parts


def span_json(span: Span | None) -> dict[str, Any] | None:
    if span is None:
        return None
    location = {
        "file": span.source.name,
        "line": span.line,
        "column": span.column,
        "end_line": span.end_line,
        "end_column": span.end_column,
    }
    return location | ({"via": span_json(span.via)} if span.via else {})


@dataclass
class Sink:
    """A collector of diagnostics; the same code at the same place is kept once."""

    diagnostics: list[Diagnostic] = field(default_factory=list)
    _alike: dict[tuple[Any, ...], list[Span | None]] = field(default_factory=dict, repr=False)

    def error(
        self, code: str, message: str, span: Span | None, hint: str | None = None, notes: Iterable[tuple[str, Span | None]] = ()
    ) -> None:
        alike = self._alike.setdefault((code, message, span and (span.line, span.column)), [])  # may be thousands
        if span not in alike:
            alike.append(span)
            self.diagnostics.append(Diagnostic(code, message, span, tuple(Note(*n) for n in notes), hint))

    def stop_if_any(self) -> None:
        if self.diagnostics:
            raise CuirError(self.diagnostics)


class CuirError(Exception):
    """An error in the program or in a call of it, with every diagnostic found.

    `str()` is the text for a terminal.
    """

    def __init__(self, diagnostics: Iterable[Diagnostic]):
        self.diagnostics = tuple(diagnostics)
        super().__init__("\n\n".join(d.render() for d in self.diagnostics))

    def __reduce__(self) -> tuple[type[CuirError], tuple[tuple[Diagnostic, ...]]]:
        return CuirError, (self.diagnostics,)  # so that it crosses processes

    @classmethod
    def of(cls, code: str, message: str, span: Span | None = None, hint: str | None = None) -> CuirError:
        return cls([Diagnostic(code, message, span, (), hint)])
