"""Page of a verification: questions and verdicts, the variant, and the kernel.

Of the kernel it shows workers over time, the program, resources and machine code.

Reports of verification as HTML: a table of the stages, the rows of the numbers, the diagnostics.
"""

from __future__ import annotations

from html import escape

from ..attn.verification.problems import is_attention
from ..checking.checked import Checked
from ..checking.const_defaults import describe_consts
from ..spec.function_specification import AnySpecification
from ..spec.specification import Specification
from ..syntax.nodes import Program
from ..syntax.printer import show
from ..text.diagnostics import Diagnostic
from ..verification.report import Stage, VerifyReport
from .mask_picture import render_mask, render_variant
from .page import Section, render_page
from .program_html import render_diff, render_program
from .resources_section import make_compiled_sections
from .run_section import render_verified_run

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


def render_verification_page(
    report: VerifyReport, program: Program, checked: Checked | None, spec: AnySpecification, origin: Program | None = None
) -> str:
    """Render the page of a verification.

    checked: None if the program is not well-formed. origin: the kernel that was adapted.
    """
    sections = [Section("Verdict", render_verification(report))]
    if origin is not None:
        sections.append(Section("Beside the origin", render_diff(show(origin), show(program))))
    sections += make_kernel_sections(program, checked, spec, report)
    return render_page(f"{report.kernel} against {report.variant}", "verified" if report.ok else "wrong", sections)


def make_kernel_sections(
    program: Program, checked: Checked | None, spec: AnySpecification, report: VerifyReport | None, compiles: bool = True
) -> list[Section]:
    """Return the sections about a kernel; those that cannot be made are left out.

    compiles: see make_compiled_sections.
    """
    sections = [Section("Variant", text)] if (text := render_variant(spec)) else []
    if checked is not None and isinstance(spec, Specification) and is_attention(checked.origin):
        sections.append(Section("Mask", render_mask(program, checked, spec)))
    if checked is not None:
        diagnostics = report.diagnostics if report is not None else ()
        sections.append(Section("Workers over time", render_verified_run(program, checked, spec, diagnostics)))
    sections.append(Section("Program", render_program(program)))
    if checked is not None and (report is None or report.ok):
        sections += make_compiled_sections(checked, compiles)
    return sections
