"""Live progress of a job's steps on stderr: a table that fills on a terminal, else one line a step."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .interruption import Interrupted
from .output import plain, stderr

if TYPE_CHECKING:
    from ..bridging import Step


class Steps:
    """View of steps as they come; used as a context around the job and as its progress function."""

    def __init__(self, title: str, quiet: bool = False):
        self.title, self.quiet = title, quiet
        self.steps: list[Step] = []
        self.started: dict[int, float] = {}
        self.live: Any = None
        self.told: set[int] = set()

    def __enter__(self) -> Steps:
        if not self.quiet and not plain():
            from rich.live import Live

            self.live = Live(get_renderable=self.table, console=stderr(), refresh_per_second=8)
            self.live.__enter__()
        elif not self.quiet:
            stderr().print(self.title)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        running = [s for s in self.steps if s.status in ("running", "interrupted")]
        interrupted = kind is not None and issubclass(kind, KeyboardInterrupt)
        for step in running if interrupted else ():
            step.status, step.seconds = "interrupted", time.perf_counter() - self.started[id(step)]
            self(step)
        if self.live is not None:
            self.live.__exit__(kind, error, trace)
        if interrupted:
            raise Interrupted(step=running[-1].name if running else "") from None

    def __call__(self, step: Step) -> None:
        if not any(s is step for s in self.steps):
            self.steps.append(step)
            self.started[id(step)] = time.perf_counter()
        if self.live is not None:
            self.live.refresh()
        elif not self.quiet and step.status != "running" and id(step) not in self.told:
            self.told.add(id(step))
            seconds = f"{step.seconds:7.2f} s" if step.status != "skipped" else " " * 9
            stderr().print(f"  {step.name:10s} {_word(step.status):11s} {seconds}  {step.detail}", soft_wrap=True)

    def table(self) -> Any:
        """Return the table of steps."""
        from rich.console import Group
        from rich.spinner import Spinner
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column("step", no_wrap=True)
        table.add_column("status", no_wrap=True, width=11)
        table.add_column("seconds", no_wrap=True, justify="right", width=9)
        table.add_column("detail", overflow="fold", ratio=1)
        for s in self.steps:
            running = s.status == "running"
            elapsed = time.perf_counter() - self.started[id(s)] if running else s.seconds
            style = {"done": "green", "failed": "bold red", "skipped": "yellow", "interrupted": "yellow"}.get(s.status, "")
            mark: Any = Spinner("dots", style="cyan") if running else Text(_word(s.status), style=style)
            table.add_row(
                Text(f"  {s.name}", style="bold"),
                mark,
                Text("" if s.status == "skipped" else f"{elapsed:.2f} s", style="dim"),
                Text(s.detail),
            )
        return Group(Text(self.title, style="bold"), table)


def _word(status: str) -> str:
    """Return the word for a status."""
    return "left out" if status == "skipped" else status
