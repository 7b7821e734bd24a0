"""Views of tuning and benchmarks, while they run and when they are done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..text.diagnostics import CuirError
from .live_view import ProgressLine
from .output import make_styled_text, print_json, stdout
from .tables import print_table

if TYPE_CHECKING:
    from ..performance.search import Outcome, TuneReport
    from ..performance.search.search import Progress
    from ..performance.suites.result_rows import Row
    from ..performance.suites.suite_run import ProgressCount

MOST_CANDIDATES = 8  # candidates of a table


class TuneView(ProgressLine):
    """View of a search."""

    best = ""

    def __call__(self, progress: Progress) -> None:
        self.update(f"{progress.doing}  ({_counts(progress.outcomes)}; {progress.seconds:.0f} s)", progress.share)
        if progress.best is not None:
            self.tell(progress.best)

    def tell(self, best: Outcome) -> None:
        """Print a setting that became the best; new measurements of the same setting are not printed."""
        if _settings(best.consts) != self.best:
            self.best = _settings(best.consts)
            self.log(f"best so far {best.median:.4f} ms: {self.best}")


class BenchView(ProgressLine):
    """View of a benchmark."""

    def __call__(self, progress: ProgressCount) -> None:
        if progress.lasting:
            self.log(progress.doing)
            return
        share = progress.finished / progress.of if progress.of else None
        self.update(f"{progress.doing}, {progress.finished} of {progress.of} done" if progress.of else progress.doing, share)
        if progress.row is not None:
            self.log(f"{progress.finished:3d} of {progress.of}  {line(progress.row)}")


def line(row: Row) -> str:
    """Format a row as a line."""
    from ..performance.suites.results import ours, peers, place, rate, ratios

    head = f"{place(row):44s}  "
    if "failed" in row:
        return f"{head}failed: {row['failed']}"
    mine, shares = ours(row), ratios(row)
    wrong = [f"{n}: {c.get('wrong') or c.get('failed')}" for n, c in row["contenders"].items() if "wrong" in c or "failed" in c]
    figures = "  ".join(f"{n} {t:.0f}" + (f" ({shares[n]:.2f} x)" if n in shares else "") for n, t in peers(row).items())
    first = f"{mine[0]} {rate(mine[1]):.0f}" if mine else "cuir -"
    return f"{head}{first}  {figures}  {'; '.join(wrong)}".rstrip()


def _counts(outcomes: Sequence[Outcome], fits: str = "fit") -> str:
    """Describe the number of candidates with each status."""
    counts: dict[str, int] = {}
    for outcome in outcomes:
        counts[outcome.status] = counts.get(outcome.status, 0) + 1
    words = {"waiting": "not checked yet", "fits": fits}
    return ", ".join(f"{n} {words.get(s, s)}" for s, n in counts.items())


def print_tuned(report: TuneReport, static: bool, fixed: str) -> None:
    """Print the report of a search.

    fixed: the consts that all its settings share, as text.
    """
    console = stdout()
    counts = _counts(report.outcomes, "fit" if static else "fit but were not tried")
    console.print(f"{counts}; {report.seconds:.0f} s", highlight=False)
    if static:
        print_table(
            f"candidates that fit, with {fixed}", ("setting",), [(_settings(o.consts),) for o in report.outcomes if o.status == "fits"]
        )
    timed = sorted((o for o in report.outcomes if o.status == "timed"), key=lambda o: o.median)
    if timed:
        print_table(
            f"fastest with {fixed}",
            ("milliseconds", "setting"),
            [(f"{o.median:.4f}", _settings(o.consts)) for o in timed[:MOST_CANDIDATES]],
        )
    reasons: dict[str, tuple[int, str]] = {}
    for o in report.outcomes:
        if o.why:
            kind = f"{o.status}: {o.why.split(':')[0]}"
            reasons[kind] = (reasons.get(kind, (0, ""))[0] + 1, f"{_settings(o.consts)}: {o.why}")
    if reasons:
        print_table(
            f"left out, with {fixed}",
            ("how many", "why", "the last of them"),
            [(str(n), kind, example) for kind, (n, example) in reasons.items()],
        )
    if not report.complete:
        console.print("the limit of time was reached; the same command goes on from here", style="yellow")
    if report.best is not None:
        console.print(
            make_styled_text(("best", "bold green"), f"  {report.best.median:.4f} ms: -c {_settings(report.best.consts)}"),
            highlight=False,
            soft_wrap=True,
        )
        if report.best.built is not None and report.best.built.spills:
            spilled = f"warning: it spills {report.best.built.spills:,} bytes of registers a thread: every candidate spills, or was slower; smaller tiles in --space may fit"
            console.print(spilled, style="yellow", highlight=False, soft_wrap=True)


def _settings(consts: Any) -> str:
    """Format a setting."""
    from ..performance.search.space import label

    return label(consts)


def finish_bench(
    head: dict[str, Any], rows: Sequence[Row], path: Path, complete: bool, as_json: bool, rows_shown: bool = False, anew: bool = True
) -> int:
    """Write table and plot beside the results file; return the exit code.

    It is 1 if one of our kernels failed or is wrong. `rows_shown`: the rows were shown already. `anew`: an existing
    table and plot are overwritten.
    """
    from ..performance.suites.results import OURS, describe_row_consts, family, markdown, means, names_of_peers, plot, summary

    table, picture, missing = path.with_suffix(".md"), path.with_suffix(".svg"), ""
    try:
        if anew or not table.exists():
            table.write_text(markdown(head, rows), encoding="utf-8")
    except OSError as error:
        raise CuirError.of("U108", f"cannot write {table}: {error.strerror}", hint="name another file with --out") from None
    try:
        if anew or not picture.exists():
            plot(head, rows, picture)
    except CuirError as error:
        if error.diagnostics[0].code != "U120":
            raise
        missing = error.diagnostics[0].message
    good = bool(rows) and all(
        "failed" not in r and not any(family(n) == OURS and ("wrong" in c or "failed" in c) for n, c in r["contenders"].items())
        for r in rows
    )
    if as_json:
        print_json(
            {
                "ok": good,
                "diagnostics": [],
                "complete": complete,
                "missing": missing or None,
                **head,
                "rows": list(rows),
                "summary": summary(rows),
                "means": {group: {peer: asdict(m) for peer, m in of.items()} for group, of in means(rows).items()},
                "files": [str(p) for p in (path, table, picture) if p.exists()],
            }
        )
        return 0 if good else 1
    console = stdout()
    if consts := describe_row_consts(head, rows):
        console.print(consts, highlight=False, soft_wrap=True)
    for row in () if rows_shown else rows:
        console.print(line(row), highlight=False, soft_wrap=True)
    names, by_group = names_of_peers(rows), means(rows)
    if by_group:
        print_table(
            "geometric means of cuir / peer (and the smallest)",
            ("rows", *names),
            [(group, *(of[n].text if n in of else "" for n in names)) for group, of in by_group.items()],
        )
    for text in summary(rows):
        console.print(text, highlight=False, soft_wrap=True)
    console.print(f"in {path}, {table}" + (f"; left out: {missing}" if missing else f", {picture}"), soft_wrap=True)
    if not complete:
        console.print("the limit of time was reached; the same command goes on from here", style="yellow")
    return 0 if good else 1
