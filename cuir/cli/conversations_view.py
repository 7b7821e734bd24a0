"""Progress of conversations with a model on stderr: a table on a terminal, else lines."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .interruption import Interrupted
from .output import plain, stderr

if TYPE_CHECKING:
    from llm.loop import Event

BUSY = ("asking", "judging")  # kinds of events that another one follows


class Conversations:
    """View of the samples of a loop; used as a context around the loop and as its progress function."""

    def __init__(self, title: str, quiet: bool = False):
        self.title, self.quiet = title, quiet
        self.latest: dict[int, tuple[Event, float]] = {}
        self.said: dict[int, str] = {}
        self.live: Any = None
        self.interrupted = False

    def __enter__(self) -> Conversations:
        if not self.quiet and not plain():
            from rich.live import Live

            self.live = Live(get_renderable=self.table, console=stderr(), refresh_per_second=8)
            self.live.__enter__()
        elif not self.quiet:
            stderr().print(self.title, soft_wrap=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.interrupted = kind is not None and issubclass(kind, KeyboardInterrupt)
        busy = [event for event, _ in self.latest.values() if event.kind in BUSY]
        if self.live is not None:
            self.live.__exit__(kind, error, trace)
        elif self.interrupted and not self.quiet:
            for event in busy:
                stderr().print(f"  sample {event.sample}, attempt {event.attempt}: interrupted", soft_wrap=True)
        if self.interrupted:
            raise Interrupted(step=busy[-1].kind if busy else "") from None

    def __call__(self, event: Event) -> None:
        self.latest[event.sample] = (event, time.perf_counter())
        if event.kind == "judged":
            self.said[event.sample] = _line(event)
        if self.live is not None:
            self.live.refresh()
        elif not self.quiet and event.kind == "judged":
            stderr().print(f"  sample {event.sample}, attempt {event.attempt}: {_line(event)}", soft_wrap=True)
            stderr().print(f"    so far: {event.budget.summary()}", soft_wrap=True)
        elif not self.quiet and event.kind == "asking":
            stderr().print(f"  sample {event.sample}, attempt {event.attempt}: asking", soft_wrap=True)

    def table(self) -> Any:
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
                Text(f"  {sample}.{event.attempt}", style="bold"), doing, Text(seconds, style="dim"), Text(self.said.get(sample, ""))
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
