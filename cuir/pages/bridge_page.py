"""Page of an adaptation of a kernel to a variant.

It shows the steps, the variant, the program beside its origin, verification, resources and times.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from ..checking.checked import Checked
from ..checking.checker import check
from ..spec.specification import Specification
from ..syntax.nodes import Program
from ..syntax.parser import parse
from ..syntax.printer import show
from ..text.diagnostics import CuirError
from .html_table import Html, render_table
from .page import Section, render_page, write_page
from .program_html import render_diff
from .verification_page import make_kernel_sections, render_diagnostics, render_verification

if TYPE_CHECKING:
    from ..bridging import BridgeReport
    from ..performance.suites.result_rows import Comparison


def render_steps(report: BridgeReport) -> str:
    """Render the steps of an adaptation, with notes and diagnostics."""
    rows = "".join(
        f"<tr><th>{escape(s.name)}</th><td>{escape(s.status)}</td><td>{escape(s.detail)}</td><td>{s.seconds:.1f} s</td></tr>"
        for s in report.steps
    )
    notes = "".join(f"<p>{escape(n)}</p>" for n in (*report.notes, *report.missing))
    return f"<table>{rows}</table>{notes}{render_diagnostics(report.diagnostics)}"


def _check(program: Program, report: BridgeReport) -> Checked | None:
    """Check the adapted program; None if it is not well-formed."""
    try:
        return check(program, report.kernel or None, report.consts)
    except CuirError:
        return None


def _render_times(timing: Comparison) -> str:
    """Render the time of the kernel beside those of others, with bars."""
    times = [t for row in timing["rows"] if (t := row.get("milliseconds"))]
    rows = []
    for row in timing["rows"]:
        t = row.get("milliseconds")
        bar = (
            f'<div class="bar"><i style="width:{300 * min(times) / t:.0f}px;background:#5b8fb9"></i></div>'
            if t
            else escape(row.get("why", ""))
        )
        rows.append((row["what"], f"{t:.4g}" if t else "", f"{row.get('tflops') or 0:.0f}" if t else "", Html(bar)))
    head = f"<p>{escape(timing['problem'])} on {escape(timing['device'])}: {escape(str(timing['summary']))}</p>"
    accuracy = f"<p>The largest error is {timing['error']:.2e}, PyTorch's own in half precision {timing['yardstick']:.2e}.</p>"
    return head + render_table(("kernel", "ms", "TFLOP/s", "speed"), rows) + accuracy


def write_bridge_page(path: Path, report: BridgeReport, origin: Program, spec: Specification) -> None:
    """Write the page of a report, with the adapted program of its folder. Raises CuirError U108."""
    adapted = report.files.get(f"{spec.name}.cuir")
    text = Path(adapted).read_text(encoding="utf-8") if adapted else None
    write_page(path, render_bridge_page(report, origin, text, spec))


def render_bridge_page(report: BridgeReport, origin: Program, text: str | None, spec: Specification) -> str:
    """Render the page. text: the adapted program, None if the transfer failed."""
    sections = [Section("Steps", render_steps(report))]
    if text is not None:
        sections.append(Section("Beside the origin", render_diff(show(origin), text)))
    if report.verification is not None:
        sections.append(Section("Verdict", render_verification(report.verification)))
    if report.timing:
        sections.append(Section("Times", _render_times(report.timing)))
    if text is not None:
        program = parse(text, f"{report.variant}.cuir")
        sections += make_kernel_sections(program, _check(program, report), spec, report.verification, compiles=report.resources is not None)
    return render_page(f"{report.variant}: an adapted kernel", "done" if report.ok else "failed", sections)
