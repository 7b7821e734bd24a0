"""Table of a run of `faults_on_gpu`: how many faults of each class were detected by which tool."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cuir.mutation import FAULTS
from cuir.text.markdown import table

from .launches import DIFFERS, ERROR, HANGS, RIGHT, WRONG
from .planted_faults import Fault

KIND = re.compile(r"=\s(?:Error: )?((?:[A-Z][a-z]+ )+(?:error |access )?(?:reported|detected))")
RESULTS = "results"  # nothing around the process: outputs are compared
TOOLS = ("racecheck", "memcheck", "synccheck")
REPORTS = "reports"
AS_ORIGINAL = "reports as of the original"  # a report on the kernel without the fault, too, tells nothing about the fault
BEGIN, END = "<!-- faults on a GPU -->\n", "<!-- end of faults on a GPU -->\n"  # of the table in docs/notes/other_tools.md
KINDS = {WRONG: "wrong", DIFFERS: "differ from run to run", HANGS: "hang", ERROR: "end in an error"}
HEAD = ("class", "fault", "faults run", "shown by results", *TOOLS)

Outcomes = Mapping[tuple[str, str], str]  # (fault's id, tool) -> outcome


@dataclass(frozen=True)
class Row:
    """Faults of a class that were run.

    Attributes:
        tools: For each tool, how many faults it reports, and how many have run under it.
        any: Number detected by results or by a tool.
    """

    faults: Sequence[Fault]
    results: Counter[str]
    tools: Mapping[str, tuple[int, int]]
    any: int
    tool_alone: int


def outcomes_of(records: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], str]:
    """Return the outcome of each fault under each tool, from the lines of a file; the last counts.

    Reports that the original has as well, as many and of the same kinds, are marked as such.
    """
    last = {(r["id"], r["under"]): r for r in records}
    originals = {(r["kernel"], r["under"]): r for r in last.values() if r["class"] == 0 and r["outcome"] == REPORTS}

    def outcome(record: Mapping[str, Any]) -> str:
        original = originals.get((record["kernel"], record["under"]))
        if original is None or record["class"] == 0 or record["outcome"] != REPORTS:
            return str(record["outcome"])
        new = kinds(record) - kinds(original) or record.get("reports", 0) > original.get("reports", 0)
        return REPORTS if new else AS_ORIGINAL

    return {key: outcome(r) for key, r in last.items()}


def kinds(record: Mapping[str, Any]) -> set[str]:
    """Return the kinds of errors in a tool's log, in its words."""
    return set(KIND.findall(record.get("log", "") + f"= {record['says']}"))


def find_kind_lines(log: str) -> str:
    """Return the distinct lines of a tool's log that name kinds of errors."""
    return "\n".join(dict.fromkeys(line for line in log.split("\n") if KIND.search(line)))


def row_of(faults: Sequence[Fault], outcomes: Outcomes) -> Row:
    """Count the faults whose results have been compared."""
    ran = [f for f in faults if outcomes.get((f.id, RESULTS)) in (RIGHT, WRONG, DIFFERS, HANGS, ERROR)]
    results = Counter(outcomes[f.id, RESULTS] for f in ran)
    reported = {f.id for f in ran for t in TOOLS if outcomes.get((f.id, t)) == REPORTS}
    right = {f.id for f in ran if outcomes[f.id, RESULTS] == RIGHT}
    tools = {t: (sum(outcomes.get((f.id, t)) == REPORTS for f in ran), sum((f.id, t) in outcomes for f in ran)) for t in TOOLS}
    return Row(ran, results, tools, len(ran) - len(right - reported), len(right & reported))


def markdown(faults: Sequence[Fault], outcomes: Outcomes) -> str:
    """Return the table: a line for each class, all of them, and the controls.

    Zeros are left blank, `3/7` is 3 reports on 7 faults.
    """
    classes = sorted({f.fault for f in faults} - {0})
    groups = [(str(c), FAULTS[c], [f for f in faults if f.fault == c]) for c in classes]
    groups.append(("all", "", [f for f in faults if f.fault]))
    rows = [_cells(number, title, row_of(of, outcomes)) for number, title, of in groups]
    controls = row_of([f for f in faults if not f.fault], outcomes)
    rows.append(_cells("none", "no fault: the kernels as they are", controls))
    return "\n".join(table(HEAD, rows)) + "\n"


def _cells(number: str, title: str, row: Row) -> tuple[str, ...]:
    """Return the cells of a row."""
    tools = [f"{n}/{of}" if of else "" for n, of in row.tools.values()]
    return (number, title, str(len(row.faults)), str(len(row.faults) - row.results[RIGHT]), *tools)


def summary(faults: Sequence[Fault], outcomes: Outcomes) -> str:
    """Return the counts of all classes in a sentence."""
    row = row_of([f for f in faults if f.fault], outcomes)
    detected = len(row.faults) - row.results[RIGHT]
    tools = ", ".join(f"{t} reports {n} of {of}" for t, (n, of) in row.tools.items())
    kinds = ", ".join(f"{row.results[o]} {word}" for o, word in KINDS.items())
    stopped = sum(bool(f.fault and f.unrunnable) for f in faults)
    stages = Counter(f.stage for f in row.faults if f.stage)
    stage_counts = ", ".join(f"{stage} {n}" for stage, n in stages.most_common())
    return (
        f"Of {len(row.faults)} faults that ran, results showed {detected} ({kinds}). Of the tools, {tools}. Results or a tool show {row.any} faults; "
        f"{row.results[RIGHT]} faults gave right results in every run, and a tool reports {row.tool_alone} of these. "
        f"`cuir verify` refuses all {len(row.faults)} faults"
        + (f" ({stage_counts})" if stages else "")
        + (f"; {stopped} more cannot be run." if stopped else ".")
    )


def list_unseen(faults: Sequence[Fault], outcomes: Outcomes) -> list[str]:
    """Return the faults that gave right results every time and that no tool reported, a line each."""
    return [
        f"class {f.fault}, {f.kernel}, {f.operator}: {f.what} ({f.stage} {f.code})"
        for f in faults
        if f.fault and outcomes.get((f.id, RESULTS)) == RIGHT and not any(outcomes.get((f.id, t)) == REPORTS for t in TOOLS)
    ]


def with_table(page: str, text: str) -> str:
    """Return the page with a text between its marks. Raises ValueError if it has none."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page lacks the lines {BEGIN.strip()} and {END.strip()}")
    return f"{before}{BEGIN}{text}{END}{after}"
