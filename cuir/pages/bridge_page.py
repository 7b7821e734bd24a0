"""Page of an adaptation: steps, the variant, the program beside its origin, verification, resources, times."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from ..checking.checker import check
from ..spec.specification import Specification
from ..syntax.nodes import Program
from ..syntax.parser import parse
from ..syntax.printer import show
from .diff_html import render_diff
from .page import Section, render_page
from .report_html import render_diagnostics, render_verification
from .verification_page import make_kernel_sections

if TYPE_CHECKING:
    from ..bridging import BridgeReport


def render_steps(report: BridgeReport) -> str:
    """Render the steps of an adaptation, with notes and diagnostics."""
    rows = "".join(
        f"<tr><th>{escape(s.name)}</th><td>{escape(s.status)}</td><td>{escape(s.detail)}</td><td>{s.seconds:.1f} s</td></tr>"
        for s in report.steps
    )
    notes = "".join(f"<p>{escape(n)}</p>" for n in (*report.notes, *report.missing))
    return f"<table>{rows}</table>{notes}{render_diagnostics(report.diagnostics)}"


def render_bridge_page(report: BridgeReport, origin: Program, text: str | None, spec: Specification) -> str:
    """Render the page. text: the adapted program, None if the transfer failed."""
    sections = [Section("Steps", render_steps(report))]
    if spec.doc:
        sections.append(Section("Variant", f"<pre>{escape(spec.doc)}</pre>"))
    if text is not None:
        sections.append(Section("Beside the origin", render_diff(show(origin), text)))
    if report.verification is not None:
        sections.append(Section("Verdict", render_verification(report.verification)))
    if report.resources:
        cells = "".join(f"<tr><th>{escape(str(k))}</th><td>{escape(str(v))}</td></tr>" for k, v in report.resources.items())
        sections.append(Section("Resources", f"<table>{cells}</table>"))
    if report.timing:
        sections.append(Section("Times", f"<p>{escape(str(report.timing['summary']))}</p>"))
    if text is not None and report.ok:
        program = parse(text)
        sections += make_kernel_sections(program, check(program, report.kernel or None, report.consts), spec, report.verification)
    return render_page(f"{report.variant}: an adapted kernel", "done" if report.ok else "failed", sections)
