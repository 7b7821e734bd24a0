"""The tables of public reports in Markdown: what was tried, by project, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence

from tests.peer.cases import load_reports
from tests.peer.reports.suite import REPORTED
from tests.peer.running import PASS, REFUSED, Outcome

BEGIN, END = "<!-- python -m tests.peer.reports -->\n", "<!-- /python -m tests.peer.reports -->\n"
OTHERS, USERS = "Other projects", "User code"
OWN_HEADINGS = {
    "pytorch/pytorch": "PyTorch",
    "meta-pytorch/attention-gym": "attention-gym",
    "Dao-AILab/flash-attention": "FlashAttention",
    "huggingface/transformers": "transformers",
    "user code": USERS,
}


def make_table(outcomes: Sequence[Outcome]) -> str:
    """Make a table of what is refused, and one of each project's reports. User code has rows only where a case does not pass."""
    load_reports()
    tried: dict[str, list[str]] = {heading: [] for heading in ("PyTorch", "attention-gym", "FlashAttention", "transformers", OTHERS, USERS)}
    for name, report in REPORTED.items():
        of_report = [o for o in outcomes if o.name.split("::")[1].partition("[")[0] == name]
        remark = _make_remark(of_report)
        if not report.why or remark:
            heading = OWN_HEADINGS.get(report.place.partition("#")[0].partition(":")[0], OTHERS)
            if heading != USERS or any(o.outcome != PASS for o in of_report):
                tried[heading].append(f"| {_make_link(report.place)} | {report.title} | {remark} |")
    counts = [sum(o.part == part and o.outcome == PASS for o in outcomes) for part in ("forward", "gradients")]
    totals = [sum(o.part == part for o in outcomes) for part in ("forward", "gradients")]
    summary = f"{len(REPORTED)} reports: {counts[0]} of {totals[0]} forward cases pass, {counts[1]} of {totals[1]} with gradients."
    refused = ["| refused | report | why, and what to write instead |", "|---|---|---|"]
    refused += [f"| {report.title} | {_make_link(report.place)} | {report.why} |" for report in REPORTED.values() if report.why]
    head = "| source | what was tried | remark |\n|---|---|---|\n"
    tables = [f"### {heading}\n\n{head}" + "\n".join(lines) for heading, lines in tried.items() if lines]
    return "\n\n".join([summary, "## What is refused", "\n".join(refused), "## What was tried", *tables])


def replace_table(page: str, text: str) -> str:
    """Replace the table between the two marks of a page. Raises ValueError if it has none."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no lines {BEGIN.strip()} and {END.strip()}")
    return f"{before}{begin}\n{text}\n\n{end}{after}"


def _make_remark(outcomes: Sequence[Outcome]) -> str:
    """Describe outcomes other than a pass of both parts; empty if there are none."""
    bad = [o for o in outcomes if o.outcome != PASS]
    remarks = [
        f"{o.part} {o.name.partition('[')[2].rstrip(']')}: {f'refused, {o.code}' if o.outcome == REFUSED else o.outcome}" for o in bad
    ]
    report = REPORTED[outcomes[0].name.split("::")[1].partition("[")[0]] if outcomes else None
    if outcomes and not bad and not (report and report.why) and all(o.part == "forward" for o in outcomes):
        remarks.append("no gradients tried")
    return ", ".join(remarks)


def _make_link(place: str) -> str:
    if "#" not in place:
        return place
    repository, _, number = place.partition("#")
    return f"[{repository.split('/')[1]}#{number}](https://github.com/{repository}/issues/{number})"
