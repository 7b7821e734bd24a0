"""Page of a verification: questions and verdicts, the mask, workers over time, the program, its CUDA."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..attn.verification.problems import Case, is_attention
from ..checking.checked import Checked
from ..interp import run
from ..interp.event_trace import Trace
from ..lowering import lower
from ..spec.function_specification import AnySpecification
from ..spec.specification import Lengths, Specification
from ..syntax.nodes import Program
from ..text.diagnostics import CuirError
from ..verification.report import VerifyReport
from ..verification.spec_dispatch import get_tile_sizes, make_schedule_cases, prepare_launch
from .mask_picture import count_blocks, find_visits, render_blocks
from .page import Section, render_page
from .program_html import render_cuda, render_program
from .report_html import render_verification
from .timeline_picture import render_timeline

_TILES = 8  # tiles of queries in the picture of a mask


def render_verification_page(report: VerifyReport, program: Program, checked: Checked | None, spec: AnySpecification) -> str:
    """Render the page. checked: None if the program is not well-formed."""
    sections = [Section("Verdict", render_verification(report)), *make_kernel_sections(program, checked, spec, report)]
    return render_page(f"{report.kernel} against {report.variant}", "verified" if report.ok else "wrong", sections)


def make_kernel_sections(program: Program, checked: Checked | None, spec: AnySpecification, report: VerifyReport | None) -> list[Section]:
    """Return the sections about a kernel; those that cannot be made are left out."""
    sections = []
    if checked is not None and isinstance(spec, Specification) and is_attention(checked.origin):
        sections.append(Section("Mask", _render_mask(program, checked, spec)))
    if checked is not None:
        sections.append(Section("Workers over time", _render_run(program, checked, spec, report)))
    sections.append(Section("Program", render_program(program)))
    if checked is not None and (report is None or report.ok):
        sections.append(Section("CUDA", f"<details><summary>the text</summary>{render_cuda(lower(checked).source)}</details>"))
    return sections


def _render_mask(program: Program, checked: Checked, spec: Specification) -> str:
    BM, BN = get_tile_sizes(checked)
    lengths = Lengths(1, 1, 1, _TILES * BM, _TILES * BM)
    mask = spec.kept(lengths)[0, 0]
    picture = render_blocks(find_visits(program, checked, spec, lengths, count_blocks(mask, BM, BN)), f"mask of {spec.name}")
    text = f"{lengths.M} queries in tiles of {BM}, as many keys in blocks of {BN}; a number is a block's place in the order of visits."
    return f"<p>{text}</p>{picture}"


def _render_run(program: Program, checked: Checked, spec: AnySpecification, report: VerifyReport | None) -> str:
    """Run a small problem and draw it; the line of the first diagnostic is outlined."""
    trace = Trace()
    case = _choose_case(checked, spec)
    first = next((d for d in report.diagnostics if d.span is not None), None) if report is not None else None
    stopped = ""
    try:
        run(checked, prepare_launch(program, checked, spec, case).arguments(), trace=trace, grid=1)
    except CuirError as error:
        stopped = f"<p>The run ends with {error.diagnostics[0].code}: what came before is drawn.</p>"
    line = first.span.line if first is not None and first.span is not None else None
    return f"<p>One CTA, {case}.</p>{stopped}{render_timeline(trace, line)}"


def _choose_case(checked: Checked, spec: AnySpecification) -> Any:
    cases: Sequence[Any] = make_schedule_cases(checked, spec)
    if cases:
        return cases[0]
    return Case("one tile", Lengths(1, 1, 1, 128, 128))
