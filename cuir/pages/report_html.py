"""Reports of verification as HTML: a table of the stages, the rows of the numbers, the diagnostics."""

from __future__ import annotations

from html import escape

from ..checking.const_defaults import describe_consts
from ..text.diagnostics import Diagnostic
from ..verification.report import Stage, VerifyReport

_MARKS = {"passed": ("&#10003;", "#2a7f3f"), "failed": ("&#10007;", "#b3261e"), "skipped": ("&ndash;", "#777")}
_ROWS = 12  # rows of the numbers that stand open


def render_verification(report: VerifyReport) -> str:
    """Render a report of verification."""
    verdict = "verified" if report.ok else "wrong"
    head = f"<p><b>{escape(report.kernel)}</b> against {escape(report.variant)}, {escape(describe_consts(report.consts))}: <b>{verdict}</b></p>"
    stages = "".join(_render_stage(s) for s in report.stages)
    open_text = f"<p><i>Left open:</i> {escape(report.left_open)}</p>" if report.left_open else ""
    numbers = "".join(_render_rows(s) for s in report.stages if s.rows)
    return f'{head}<table class="stages">{stages}</table>{open_text}{render_diagnostics(report.diagnostics)}{numbers}'


def render_diagnostics(diagnostics: tuple[Diagnostic, ...]) -> str:
    """Render diagnostics with their carets."""
    return "".join(f'<pre class="diagnostic">{escape(d.render())}</pre>' for d in diagnostics)


def _render_stage(s: Stage) -> str:
    mark, color = _MARKS[s.verdict]
    return (
        f'<tr><td style="color:{color}">{mark}</td><th>{escape(s.name)}</th><td>{escape(s.question)}</td>'
        f'<td>{escape(s.reason)}</td><td class="seconds">{s.seconds:.1f} s</td></tr>'
    )


def _render_rows(s: Stage) -> str:
    columns = list(s.rows[0])
    head = "".join(f"<th>{escape(c)}</th>" for c in columns)
    body = "".join(f"<tr>{''.join(f'<td>{escape(_format(r.get(c, str())))}</td>' for c in columns)}</tr>" for r in s.rows)
    is_open = " open" if len(s.rows) <= _ROWS else ""
    return f"<details{is_open}><summary>{len(s.rows)} problems: {escape(s.name)}</summary><table>{head}{body}</table></details>"


def _format(value: object) -> str:
    return f"{value:.2e}" if isinstance(value, float) else str(value)
