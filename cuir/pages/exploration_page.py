"""Page of an exploration of every schedule: the launches, and the failing schedule step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..arguments.binding import Argument
from ..checking.checked import Checked
from ..explore import Written
from ..text.diagnostics import Diagnostic
from ..verification.exhaustive import Explored
from .html_table import render_table
from .listing_html import render_listing
from .page import Section, render_page
from .run_section import render_run
from .verification_page import render_diagnostics


def render_exploration_page(
    checked: Checked, explorations: Sequence[Explored], diagnostics: Sequence[Diagnostic], arguments: Mapping[str, Argument] | None
) -> str:
    """Render the page. arguments: of the launch whose schedule fails, None if none does."""
    rows = [
        (
            str(e.case),
            e.result.verdict,
            *(f"{n:,}" for n in (e.result.agents, e.result.steps, e.result.states, e.result.classes)),
            f"{e.result.seconds:.1f} s",
        )
        for e in explorations
    ]
    table = render_table(("launch", "verdict", "agents", "steps", "states", "classes", "time"), rows)
    sections = [Section("Launches", table + render_diagnostics(tuple(diagnostics)))]
    written = explorations[-1].result.schedule if explorations else None
    if written is not None and arguments is not None:
        sections.append(_make_schedule_section(checked, written, arguments))
    sections.append(Section("Program", render_listing(checked.origin.span.source)))
    verdict = "a schedule fails" if diagnostics else "no schedule of these launches fails"
    return render_page(f"Every schedule of {checked.name}", verdict, sections)


def render_schedule_page(checked: Checked, written: Written, arguments: Mapping[str, Argument], name: str) -> str:
    """Render the page of one recorded schedule, run with data. name: its file."""
    return render_page(
        f"A schedule of {checked.name}", f"{name}: {written.code}, {written.message}", [_make_schedule_section(checked, written, arguments)]
    )


def _make_schedule_section(checked: Checked, written: Written, arguments: Mapping[str, Argument]) -> Section:
    dims = ", ".join(f"{name}={length}" for name, length in written.dims.items())
    words = f"The schedule of {len(written.steps)} steps, on a grid of {written.grid}, {dims}"
    return Section("Step by step", render_run(checked, arguments, written.schedule(), written.grid, words))
