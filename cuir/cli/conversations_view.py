"""Conversations with a model, for people and `--json`: progress on stderr, and the outcome.

Progress is a table on a terminal, and elsewhere a line for each answer that was judged.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from .live_view import LiveView
from .output import stderr, stdout

if TYPE_CHECKING:
    from llm.loop import Event, Outcome
    from llm.messages import Asks

BUSY = ("asking", "judging")  # kinds of events that another one follows


class Conversations(LiveView):
    """View of the samples of a loop; used as a context around the loop and as its progress function."""

    transient = False

    def __init__(self, title: str, quiet: bool = False):
        super().__init__(title, quiet)
        self.latest: dict[int, tuple[Event, float]] = {}
        self.verdicts: dict[int, str] = {}
        self.interrupted = False

    def interrupt(self) -> None:
        """Note that the running samples were interrupted."""
        self.interrupted = True

    def get_busy(self) -> list[Event]:
        """Return the latest event of each sample that is under way."""
        return [event for event, _ in self.latest.values() if event.kind in BUSY]

    def get_step(self) -> str:
        """Return the kind of the last event that is under way."""
        return next((event.kind for event in reversed(self.get_busy())), "")

    def list_interrupted(self) -> list[str]:
        """Return a line for each sample under way."""
        return [f"sample {event.sample}, attempt {event.attempt}: interrupted" for event in self.get_busy()]

    def __call__(self, event: Event) -> None:
        self.latest[event.sample] = (event, time.perf_counter())
        if event.kind == "judged":
            self.verdicts[event.sample] = _line(event)
        if self.shown:
            self.refresh()
        elif event.kind == "judged" and not self.quiet:  # what was paid for is worth a line in any log
            stderr().print(f"sample {event.sample}, attempt {event.attempt}: {_line(event)}; {event.budget.summary()}", soft_wrap=True)

    def render(self) -> Any:
        """Return the table of samples."""
        from rich.console import Group
        from rich.spinner import Spinner
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column("sample", no_wrap=True)
        table.add_column("doing", no_wrap=True, width=12)
        table.add_column("seconds", no_wrap=True, justify="right", width=8)
        table.add_column("said", overflow="fold", ratio=1)
        budget = None
        for sample, (event, since) in sorted(self.latest.items()):
            budget = event.budget
            busy = event.kind in BUSY and not self.interrupted
            word = "interrupted" if event.kind in BUSY else event.kind
            doing: Any = Spinner("dots", text=event.kind, style="cyan") if busy else Text(event.why if event.kind == "over" else word)
            seconds = f"{time.perf_counter() - since:.0f} s" if busy else ""
            table.add_row(
                Text(f"  {sample}.{event.attempt}", style="bold"), doing, Text(seconds, style="dim"), Text(self.verdicts.get(sample, ""))
            )
        foot = [Text(f"  {budget.summary()}", style="dim")] if budget is not None else []
        return Group(Text(self.title, style="bold"), table, *foot)


def _line(event: Event) -> str:
    """Format an answer and its verdict as a line."""
    verdict, answer = event.verdict, event.answer
    if verdict is None or answer is None:
        return ""
    first = verdict.diagnostics[0] if verdict.diagnostics else None
    result = "passed" if verdict.ok else f"{verdict.stage}: {first.code}: {first.message}" if first is not None else verdict.stage
    more = f" (and {len(verdict.diagnostics) - 1} more)" if len(verdict.diagnostics) > 1 else ""
    return f"{result}{more}  [{answer.tokens:,} tokens{', cached' if answer.cached else f', {answer.seconds:.0f} s'}]"


def drift(asks: Asks) -> str:
    """Describe a replay whose requests are not those on record; "" if they are, or a model was asked."""
    from llm.transcript import Replayed

    return asks.drift() if isinstance(asks, Replayed) else ""


def print_drift(asks: Asks) -> None:
    """Print a note on the drift of a replay, if there is any."""
    if note := drift(asks):
        stdout().print(f"note: {note}", soft_wrap=True)


def as_data(outcome: Outcome, asks: Asks) -> dict[str, Any]:
    """Return the outcome of a loop for --json."""
    verdict = outcome.verdict
    return {
        "ok": outcome.ok,
        "diagnostics": [d.as_json() for d in verdict.diagnostics] if verdict else [],
        "why": outcome.why,
        "stage": verdict.stage if verdict else None,
        "attempts": [
            {
                "sample": a.sample,
                "attempt": a.number,
                "stage": a.verdict.stage,
                "codes": [d.code for d in a.verdict.diagnostics],
                "tokens": a.answer.tokens,
                "cost_usd": a.answer.cost_usd,
                "seconds": round(a.answer.seconds, 3),
                "cached": a.answer.cached,
            }
            for s in outcome.samples
            for a in s.attempts
        ],
        "spent": outcome.spent,
        "requests_that_drifted": getattr(asks, "drifted", 0),
        "drift": drift(asks) or None,
        "extra": verdict.extra if verdict else {},
    }
