"""The tables of public reports in Markdown: their number by project, what is refused, and a list of all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tests.peer.cases import load_reports
from tests.peer.reports.suite import REPORTED, Report
from tests.peer.running import PASS, REFUSED, Outcome

BEGIN, END = "<!-- python -m tests.peer.reports -->\n", "<!-- /python -m tests.peer.reports -->\n"
OTHER_PROJECTS = "other projects"
OWN_HEADINGS = {
    "pytorch/pytorch": "PyTorch",
    "meta-pytorch/attention-gym": "attention-gym",
    "Dao-AILab/flash-attention": "FlashAttention",
    "huggingface/transformers": "transformers",
    "user code": "user code",
}
HEADINGS = (*list(OWN_HEADINGS.values())[:-1], OTHER_PROJECTS, "user code")
HEAD = "| report | what is tried | remark |\n|---|---|---|"
_ROW = "| {} | {} |"


def make_table(outcomes: Sequence[Outcome]) -> str:
    """Make the tables of a page: reports of each project, cases that pass, what is refused, and what does not pass."""
    load_reports()
    counts = [sum(o.part == part and o.outcome == PASS for o in outcomes) for part in ("forward", "gradients")]
    totals = [sum(o.part == part for o in outcomes) for part in ("forward", "gradients")]
    summary = f"{len(REPORTED)} reports: {counts[0]} of {totals[0]} forward cases pass, {counts[1]} of {totals[1]} with gradients."
    of_project = Counter(map(_find_heading, REPORTED.values()))
    projects = [_ROW.format("from", "reports"), "|---|--:|", *(_ROW.format(h, of_project[h]) for h in HEADINGS)]
    refused = ["| refused | report | why, and what to write instead |", "|---|---|---|"]
    refused += [f"| {report.title} | {_make_link(report.place)} | {report.why} |" for report in REPORTED.values() if report.why]
    bad = [row for row, passes in _make_rows(outcomes) if not passes]
    failures = ["## What does not pass", "\n".join([HEAD, *bad])] if bad else []
    return "\n\n".join([summary, "\n".join(projects), "## What is refused", "\n".join(refused), *failures])


def make_list(outcomes: Sequence[Outcome]) -> str:
    """Make a row for each report: its place, what it tries, and a remark unless it passes forward and with gradients."""
    load_reports()
    return "\n".join([HEAD, *(row for row, _ in _make_rows(outcomes))])


def _make_rows(outcomes: Sequence[Outcome]) -> list[tuple[str, bool]]:
    """Return the row of each report, and whether it passes."""
    rows = []
    for name, report in REPORTED.items():
        of_report = [o for o in outcomes if o.name.split("::")[1].partition("[")[0] == name]
        row = f"| {_make_link(report.place)} | {report.title} | {_make_remark(report, of_report)} |"
        rows.append((row, all(o.outcome == PASS for o in of_report)))
    return rows


def _find_heading(report: Report) -> str:
    return OWN_HEADINGS.get(report.place.partition("#")[0].partition(":")[0], OTHER_PROJECTS)


def replace_table(page: str, text: str) -> str:
    """Replace the table between the two marks of a page. Raises ValueError if it has none."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no lines {BEGIN.strip()} and {END.strip()}")
    return f"{before}{begin}\n{text}\n\n{end}{after}"


def _make_remark(report: Report, outcomes: Sequence[Outcome]) -> str:
    """Describe outcomes other than a pass of both parts; empty if there are none."""
    bad = [o for o in outcomes if o.outcome != PASS]
    if bad:
        kinds = (f"refused, {o.code}" if o.outcome == REFUSED else o.outcome for o in bad)
        return ", ".join(f"{o.part} {o.name.partition('[')[2].rstrip(']')}: {kind}" for o, kind in zip(bad, kinds))
    if report.why:
        return f"refused: {report.why.partition(':')[0]}"
    return "no gradients tried" if outcomes and all(o.part == "forward" for o in outcomes) else ""


def _make_link(place: str) -> str:
    if "#" not in place:
        return place
    repository, _, number = place.partition("#")
    return f"[{repository.split('/')[1]}#{number}](https://github.com/{repository}/issues/{number})"
