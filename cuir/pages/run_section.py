"""Section of a run in the interpreter: workers over time, and the schedule step by step.

The program's text stands beside them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from ..arguments.binding import Argument
from ..attn.verification.problems import Case
from ..checking.checked import Checked
from ..checking.checker import check
from ..interp import Schedule, run
from ..interp.event_trace import Trace
from ..spec.function_specification import AnySpecification
from ..spec.specification import Lengths
from ..syntax.nodes import Program
from ..text.diagnostics import CuirError, Diagnostic
from ..verification.failing_run import find_failing_run
from ..verification.spec_dispatch import make_schedule_cases, prepare_launch
from .listing_html import render_listing
from .schedule_steps import describe_steps, render_player
from .timeline_picture import render_timeline

_BUDGET = 20.0  # seconds of processor time


def render_verified_run(program: Program, checked: Checked, spec: AnySpecification, diagnostics: Sequence[Diagnostic]) -> str:
    """Run and draw the problem of the first diagnostic under its schedule, or else a small problem."""
    failing_run = next(((d, r) for d in diagnostics if (r := find_failing_run(d)) is not None), None)
    first, failing = failing_run or (next((d for d in diagnostics if d.span is not None), None), None)
    line = first.span.line if first is not None and first.span is not None else None
    try:
        if failing is not None:
            checked = check(program, checked.name, {**checked.consts, **failing.consts}) if failing.consts else checked
            case: Any = failing.make_case(checked, spec)
            if case is not None:
                launch = prepare_launch(program, checked, spec, case)
                words = f"{case}; schedule {failing.schedule}"
                return render_run(checked, launch.arguments(), failing.schedule, failing.grid, words, line)
        case = next(iter(make_schedule_cases(checked, spec)), None) or Case("one tile", Lengths(1, 1, 1, 128, 128))
        return render_run(checked, prepare_launch(program, checked, spec, case).arguments(), Schedule(), 1, f"One CTA, {case}", line)
    except CuirError as error:  # the problem cannot be made: the report has said why
        return f"<p>Nothing was run: {escape(error.diagnostics[0].message)}.</p>"


def render_run(
    checked: Checked,
    arguments: Mapping[str, Argument],
    schedule: Schedule,
    grid: int | None,
    words: str,
    line: int | None = None,
) -> str:
    """Run a kernel and draw the run: timeline, steps, program.

    words: describe the run. line: of a finding.
    """
    trace, fault = Trace(), None
    try:
        run(checked, arguments, trace=trace, grid=grid, schedule=schedule, budget=_BUDGET)
    except CuirError as error:
        fault = error.diagnostics[0]
        line = fault.span.line if fault.span is not None else line
    return f"<p>{escape(words)}.</p>{render_trace(trace, fault, line)}"


def render_trace(trace: Trace, fault: Diagnostic | None = None, line: int | None = None) -> str:
    """Render a trace with its steps and the text of its kernel. line: of a finding."""
    stopped = f"<p>The run ends with {fault.code} at the last step.</p>" if fault is not None else ""
    listing = render_listing(trace.source) if trace.source is not None else ""
    player = render_player(describe_steps(trace.sync_steps, fault), at_end=fault is not None)
    return f'<div class="run">{stopped}{render_timeline(trace, line)}{player}{listing}</div>'
