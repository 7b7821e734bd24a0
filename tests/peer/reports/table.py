"""The table of public reports in Markdown: a row for each, with its result in each way of calling."""

from __future__ import annotations

from collections.abc import Sequence

from tests.peer.cases import load_reports
from tests.peer.reports.suite import REPORTED
from tests.peer.running import PASS, REFUSED, Outcome

BEGIN, END = "<!-- python -m tests.peer.reports -->\n", "<!-- /python -m tests.peer.reports -->\n"


def make_table(outcomes: Sequence[Outcome]) -> str:
    """Make one row a report: where it stands, what was tried, forward and gradients, each eager and compiled."""
    load_reports()
    lines = ["| report | tried | forward | gradients |", "|---|---|---|---|"]
    for name, report in REPORTED.items():
        of_report = [o for o in outcomes if o.name.split("::")[1].partition("[")[0] == name]
        forward, backward = (_make_cell([o for o in of_report if o.part == part]) for part in ("forward", "gradients"))
        if report.why and forward == PASS:
            forward = REFUSED
        lines.append(f"| {_make_link(report.place)} | {report.title} | {forward} | {backward} |")
    counts = [sum(o.part == part and o.outcome == PASS for o in outcomes) for part in ("forward", "gradients")]
    totals = [sum(o.part == part for o in outcomes) for part in ("forward", "gradients")]
    summary = f"{len(REPORTED)} reports: {counts[0]} of {totals[0]} forward cases pass, {counts[1]} of {totals[1]} with gradients."
    refused = ["| refused | report | why, and what to write instead |", "|---|---|---|"]
    refused += [f"| {report.title} | {_make_link(report.place)} | {report.why} |" for report in REPORTED.values() if report.why]
    return "\n\n".join([summary, "\n".join(lines), "Refused:", "\n".join(refused)])


def replace_table(page: str, text: str) -> str:
    """Replace the table between the two marks of a page. Raises ValueError if it has none."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no lines {BEGIN.strip()} and {END.strip()}")
    return f"{before}{begin}\n{text}\n\n{end}{after}"


def _make_cell(outcomes: Sequence[Outcome]) -> str:
    if not outcomes:
        return "—"
    if all(o.outcome == PASS for o in outcomes):
        return "pass"
    return ", ".join(
        f"{o.name.partition('[')[2].rstrip(']')}: {f'refused, {o.code}' if o.outcome == REFUSED else o.outcome}" for o in outcomes
    )


def _make_link(place: str) -> str:
    if "#" not in place:
        return place
    repository, _, number = place.partition("#")
    return f"[{repository.split('/')[1]}#{number}](https://github.com/{repository}/issues/{number})"
