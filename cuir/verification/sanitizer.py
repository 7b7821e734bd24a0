"""Reports of compute-sanitizer on a lowered kernel, mapped to lines of the CuIR program.

The text is that of compute-sanitizer 2025 (CUDA 12.8 to 13): each line begins with `=========`, a report with a line
that is not indented.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ..text.diagnostics import Diagnostic, Note
from ..text.source import Span

TOOLS = ("memcheck", "racecheck")
# `at KERNEL(...)+0x1b0 in /tmp/x/kernel.cu:123`; the part after `in` needs line information. Host frames have another
# form.
_PLACE = re.compile(
    r"\b(?:at|Device Frame:)\s*(?P<function>[^\s+].*?)\+(?P<offset>0x[0-9a-f]+)(?: in (?P<file>\S+?):(?P<line>\d+))?(?=\s|$)"
)
_SUMMARY = re.compile(r"^(ERROR SUMMARY|RACECHECK SUMMARY|LEAK SUMMARY|COMPUTE-SANITIZER|Target application|No attachable process)")
_PARTY = re.compile(r"(?P<mode>Write|Read|Atomic)\w* access at ")


@dataclass(frozen=True)
class Place:
    """Location in a report: a line of the CUDA text and an offset in the machine code.

    The line is None if the report names a header or no file.
    """

    function: str
    offset: int
    line: int | None


@dataclass(frozen=True)
class Report:
    """One report: its first line without places, further lines, and groups of places.

    A race has two groups; each has the innermost call first.
    """

    title: str
    details: tuple[str, ...]
    places: tuple[tuple[Place, ...], ...]
    parties: tuple[str, ...] = ()  # of a race: Write, Read


def read_reports(text: str) -> list[Report]:
    """Parse the output of compute-sanitizer; summaries and the program's own output are ignored."""
    reports: list[Report] = []
    block: list[str] = []
    for raw in [*text.splitlines(), "========= "]:
        if not raw.startswith("========="):
            continue
        line = raw.removeprefix("=========")
        starts = line.strip() != "" and not line.startswith("  ")
        if block and (starts or not line.strip()):
            reports += _report(block)
            block = []
        if starts and not _SUMMARY.match(line.strip()):
            block = [line.strip()]
        elif block and line.strip():
            block.append(line.strip())
    return reports


def _report(lines: list[str]) -> list[Report]:
    groups: list[list[Place]] = []
    parties: list[str] = []
    details = []
    for line in lines:
        if line.startswith(("Saved host backtrace", "Host Frame")):
            continue
        place = _PLACE.search(line)
        if place is None:
            details.append(line)
            continue
        location = Place(place["function"], int(place["offset"], 16), int(place["line"]) if (place["file"] or "").endswith(".cu") else None)
        party = _PARTY.search(line)
        if party:
            parties.append(party["mode"])
        if party or not groups or not line.startswith("Device Frame"):
            groups.append([location])
        else:
            groups[-1].append(location)
    title = re.sub(r"\s+between (Write|Read|Atomic)\w* access at .*", "", lines[0])
    return [Report(title, tuple(d for d in details if d != lines[0]), tuple(map(tuple, groups)), tuple(parties))] if groups else []


def find_span(places: tuple[Place, ...], line_map: Mapping[int, Span], chains: Mapping[int, tuple[int, ...]]) -> Span | None:
    """Return the CuIR statement of a place: that of the innermost call that has one.

    chains: lines of each instruction, for places without a mapped line.
    """
    lines = [p.line for p in places if p.line is not None]
    for place in places:
        lines += chains.get(place.offset, ())
    return next((line_map[n] for n in lines if n in line_map), None)


def make_diagnostics(
    text: str, line_map: Mapping[int, Span], chains: Mapping[int, tuple[int, ...]] | None = None, kernel: Span | None = None
) -> tuple[Diagnostic, ...]:
    """Return a V404 for each statement and kind of report, in order, with the number of reports.

    line_map: of the lowered kernel. chains: see `cuir.runtime.sass.read_lines_of_cubin`. kernel: the place for reports that
    name no statement.
    """
    counts: dict[tuple[str, tuple[Span | None, ...]], int] = {}
    first: dict[tuple[str, tuple[Span | None, ...]], Report] = {}
    for report in read_reports(text):
        spans = tuple(find_span(group, line_map, chains or {}) for group in report.places)
        key = (report.title, spans)
        counts[key] = counts.get(key, 0) + 1
        first.setdefault(key, report)
    return tuple(_make_diagnostic(first[key], key[1], n, kernel) for key, n in counts.items())


def _make_diagnostic(report: Report, spans: tuple[Span | None, ...], count: int, kernel: Span | None) -> Diagnostic:
    notes = []
    for i, span in enumerate(spans[1:], 1):
        text = f"and the {report.parties[i].lower()} is here" if i < len(report.parties) else "and here"
        notes.append(Note(text if span else f"{text}: at {_describe_place(report.places[i][0])}, which no statement gave", span or kernel))
    if spans[0] is None:
        notes.append(Note(f"no statement gave the code at {_describe_place(report.places[0][0])}"))
    notes += [Note(d) for d in report.details[:3]]
    title = report.title.removeprefix("Error: ").removeprefix("Warning: ")
    if report.parties:
        title += f": the {report.parties[0].lower()} is here"
    often = f" ({count} reports)" if count > 1 else ""
    return Diagnostic("V404", f"compute-sanitizer: {title}{often}", spans[0] or kernel, tuple(notes))


def _describe_place(place: Place) -> str:
    return f"{place.function}+{place.offset:#x}" + (f", CUDA line {place.line}" if place.line else "")
