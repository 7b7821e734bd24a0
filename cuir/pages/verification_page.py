"""Page of a verification: questions and verdicts, the variant, and the kernel.

Of the kernel it shows workers over time, the program, resources and machine code.
"""

from __future__ import annotations

from ..attn.verification.problems import is_attention
from ..checking.checked import Checked
from ..spec.function_specification import AnySpecification
from ..spec.specification import Specification
from ..syntax.nodes import Program
from ..syntax.printer import show
from ..verification.report import VerifyReport
from .diff_html import render_diff
from .page import Section, render_page
from .program_html import render_program
from .report_html import render_verification
from .resources_section import make_compiled_sections
from .run_section import render_verified_run
from .variant_section import render_mask, render_variant


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
