"""Page of mutants: those that nothing refuses first, beside the origin.

Scores by class and by operator follow, then all mutants.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from ..mutation import FAULTS, Judged, MutateReport
from ..mutation.mutation_report import HEAD, NO_FAULT
from .html_table import Html, render_fields, render_table
from .page import Section, render_page
from .program_html import render_unified_diff

_OPEN = ("survived", "crashed", "out of time")  # verdicts that a reader looks into, in this order


def render_mutation_page(report: MutateReport, of: Mapping[str, object]) -> str:
    """Render the page. of: names and values of the run's settings: kernel, specification, consts, level."""
    results = report.results
    unrefused = [r for verdict in _OPEN for r in report.of(verdict)]
    sections = [
        Section("Not refused", _render_unrefused(unrefused)),
        Section("Score by class", _render_classes(report)),
        Section("Score by operator", _render_operators(results)),
        Section("All mutants", _render_all([r for r in results if r.verdict not in _OPEN])),
        Section("Run", render_fields((*of.items(), ("mutants", len(results)), ("seconds a mutant", f"{report.seconds:.1f}")))),
    ]
    return render_page(f"Mutants of {of.get('kernel', 'a kernel')}", report.summary(), sections)


def render_mutants(report: MutateReport) -> str:
    """Render the summary, the scores and what was not refused, for a notebook."""
    unrefused = [r for verdict in _OPEN for r in report.of(verdict)]
    return f"<p>{escape(report.summary())}</p>{_render_classes(report)}{_render_unrefused(unrefused)}"


def _render_unrefused(results: Sequence[Judged]) -> str:
    if not results:
        return "<p>Every faulty program was refused.</p>"
    return "".join(_render_mutant(r, is_open=True) for r in results)


def _render_mutant(r: Judged, is_open: bool) -> str:
    cause = " ".join(filter(None, (r.stage, r.code)))
    title = (
        f"<b>{escape(r.verdict)}</b>{f' by {escape(cause)}' if cause else ''}: {escape(r.operator)} at line {r.place[0]}: {escape(r.what)}"
    )
    reason = f"<p>{escape(r.reason)}</p>" if r.reason else ""
    fault = f"<p>Class {r.fault}: {escape(FAULTS.get(r.fault, ''))}. Judged in {r.seconds:.1f} s.</p>"
    opened = " open" if is_open else ""
    return f'<details class="mutant"{opened}><summary>{title}</summary>{fault}{reason}{render_unified_diff(r.diff)}</details>'


def _render_classes(report: MutateReport) -> str:
    rows = report.rows()
    used = [c for c in range(len(HEAD)) if c in (0, len(HEAD) - 1, len(HEAD) - 2) or any(row[c] for row in rows)]
    return render_table([HEAD[c] for c in used], [[row[c] for c in used] for row in rows])


def _render_operators(results: Sequence[Judged]) -> str:
    """Render a row for each operator, the lowest score first."""
    rows = []
    for name in {r.operator for r in results}:
        members = [r for r in results if r.operator == name]
        killed, total = MutateReport.score(members)
        refusals = ", ".join(sorted({r.stage for r in members if r.stage}))
        rows.append((killed / total if total else 2.0, name, killed, total, sum(r.verdict in NO_FAULT for r in members), refusals))
    lines = [
        (name, Html(_render_share(killed, total)), str(same or ""), refusals) for _, name, killed, total, same, refusals in sorted(rows)
    ]
    return render_table(("operator", "refused", "no fault", "stages that refuse"), lines)


def _render_share(killed: int, total: int) -> str:
    if not total:
        return "-"
    return f'<span class="meter"><i style="width:{100 * killed // total}%"></i></span> {killed}/{total}'


def _render_all(results: Sequence[Judged]) -> str:
    return "".join(_render_mutant(r, is_open=False) for r in results) or "<p>There are no others.</p>"
