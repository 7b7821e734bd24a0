"""Diagnostics as JSON that is read again: they are shown alike, without the files that they point into."""

from __future__ import annotations

import json

import pytest

from cuir.text.diagnostics import Diagnostic, Note, read_diagnostic, write_diagnostic
from cuir.text.source import Source, Span

TEXT = Source("mine.cuir", "a = 1\nb = wrong(\n    a)\n", 7)
PLACE = Span(TEXT, 8, 5, 9, 7, Span(TEXT, 7, 1, 7, 6))


@pytest.mark.parametrize(
    "diagnostic",
    [
        Diagnostic("U100", "no such option"),
        Diagnostic("N101", "unknown", PLACE, (Note("replay: now"), Note("there", PLACE.via)), "spell it", "warning"),
    ],
)
def test_what_is_read_is_shown_alike(diagnostic: Diagnostic) -> None:
    read = read_diagnostic(json.loads(json.dumps(write_diagnostic(diagnostic))))
    assert read.render() == diagnostic.render() and read.as_json() == diagnostic.as_json() and read.severity == diagnostic.severity
    assert write_diagnostic(read) == write_diagnostic(diagnostic)
