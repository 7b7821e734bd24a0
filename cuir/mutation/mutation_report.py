"""Report on all mutants: a table of class and stage, the score of each class, the survivors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..text.markdown import table
from ..text.notebook import ShownInNotebooks
from .mutant_judging import EXPLORED, VERDICTS, Judged
from .mutation_sites import FAULTS

STAGES = ("well-formed", "contracts", "schedules", "mask", "numbers", EXPLORED)
HEAD = ("class", *STAGES, *VERDICTS[1:], "score", "fault")
NO_FAULT = ("same result", "equivalent")
SHORT = ("class", "form", "contr.", "sched.", "mask", "numb.", "every", "surv.", "same", "equiv.", "time", "crash", "score", "fault")


@dataclass(frozen=True)
class MutateReport(ShownInNotebooks):
    """Results in the order of judging.

    The score of a class is killed / all; mutants that are known to be equivalent, or shown to give the same result, do
    not count.
    """

    html_renderer = "pages.mutation_page:render_mutants"

    results: Sequence[Judged]

    def __repr__(self) -> str:
        return f"MutateReport({self.summary()})"

    def of(self, verdict: str) -> list[Judged]:
        """Return the results with a verdict."""
        return [r for r in self.results if r.verdict == verdict]

    @staticmethod
    def score(results: Iterable[Judged]) -> tuple[int, int]:
        """Count the killed mutants, and all that are faults."""
        verdicts = [r.verdict for r in results if r.verdict not in NO_FAULT]
        return verdicts.count("killed"), len(verdicts)

    def rows(self) -> list[tuple[str, ...]]:
        """Return a row for each class that has mutants and one for all, in the columns of HEAD.

        Zeros are blank, the score without any fault is a dash.
        """
        faults = sorted({r.fault for r in self.results})
        groups = [(str(f), FAULTS[f], [r for r in self.results if r.fault == f]) for f in faults]
        return [self._row(*g) for g in [*groups, ("all", "", list(self.results))]]

    def _row(self, number: str, title: str, results: list[Judged]) -> tuple[str, ...]:
        stages, verdicts = Counter(r.stage for r in results), Counter(r.verdict for r in results)
        killed, total = self.score(results)
        counts = [*(stages[s] for s in STAGES), *(verdicts[v] for v in VERDICTS[1:])]
        return number, *(str(n or "") for n in counts), f"{killed}/{total}" if total else "-", title

    @property
    def seconds(self) -> float:
        """Mean time of judging a mutant."""
        judged = [r.seconds for r in self.results if r.verdict != "equivalent"]
        return sum(judged) / len(judged) if judged else 0.0

    def summary(self) -> str:
        """Summarise in one line."""
        killed, total = self.score(self.results)
        share = f" ({killed / total:.0%})" if total else ""
        return f"{killed} of {total} faulty programs refused{share}, {len(self.of('equivalent'))} known to be equivalent, {len(self.of('same result'))} shown to give the same result; {self.seconds:.1f} s a mutant"

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        classes = {}
        for fault in sorted({r.fault for r in self.results}):
            killed, total = self.score(r for r in self.results if r.fault == fault)
            classes[str(fault)] = {"fault": FAULTS[fault], "killed": killed, "all": total}
        killed, total = self.score(self.results)
        return {"killed": killed, "all": total, "seconds": self.seconds, "classes": classes, "mutants": [asdict(r) for r in self.results]}

    def as_markdown(self) -> str:
        """Format the table, and the survivors as a list."""
        lines = [
            *table(HEAD, self.rows()),
            "",
            self.summary() + ".",
        ]
        survivors = [r for r in self.results if r.verdict not in ("killed", *NO_FAULT)]
        return "\n".join(
            [*lines, "", *(f"* {r.place[0]}:{r.place[1]} class {r.fault}, {r.operator}: {r.what} ({r.verdict})" for r in survivors), ""]
        )
