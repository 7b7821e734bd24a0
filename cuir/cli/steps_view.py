"""View of a job's steps: on a terminal, a table that fills.

Elsewhere a job of several steps is a line for each step.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ..text.progress_message import get_share
from .live_view import Estimate, LiveView
from .output import stderr

if TYPE_CHECKING:
    from ..bridging import Step


class Steps(LiveView):
    """View of steps as they come; used as a context around the job and as its progress function.

    lines: where there is no terminal, the outcome of each step is a line on stderr.
    """

    transient = False

    def __init__(self, title: str, quiet: bool = False, lines: bool = False):
        super().__init__(title, quiet)
        self.lines = lines and not quiet
        self.steps: list[Step] = []
        self.started: dict[int, float] = {}
        self.reported: set[int] = set()

    def __enter__(self) -> Steps:
        super().__enter__()
        if self.lines and not self.shown:
            stderr().print(self.title)
        return self

    def interrupt(self) -> None:
        """Mark the running steps as interrupted."""
        for step in self.steps:
            if step.status in ("running", "interrupted"):
                step.status, step.seconds = "interrupted", time.perf_counter() - self.started[id(step)]

    def list_interrupted(self) -> list[str]:
        """Return a line for each interrupted step."""
        return [_line(s) for s in self.steps if s.status == "interrupted" and id(s) not in self.reported]

    def get_step(self) -> str:
        """Return the name of the step that was interrupted."""
        return next((s.name for s in reversed(self.steps) if s.status in ("running", "interrupted")), "")

    def __call__(self, step: Step) -> None:
        if not any(s is step for s in self.steps):
            self.steps.append(step)
            self.started[id(step)] = time.perf_counter()
            self.estimate = Estimate()
        self.estimate.update(get_share(step.detail))
        if self.shown:
            self.refresh()
        elif self.lines and step.status != "running" and id(step) not in self.reported:
            self.reported.add(id(step))
            stderr().print(f"  {_line(step)}", soft_wrap=True)

    def render(self) -> Any:
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
            estimate = self.estimate.describe() if running else ""
            table.add_row(
                Text(f"  {s.name}", style="bold"),
                mark,
                Text("" if s.status == "skipped" else f"{elapsed:.2f} s", style="dim"),
                Text.assemble((f"{estimate}  " if estimate else "", "cyan"), str(s.detail)),
            )
        return Group(Text(self.title, style="bold"), table)


def _line(step: Step) -> str:
    """Return a step as a line."""
    seconds = f"{step.seconds:7.2f} s" if step.status != "skipped" else " " * 9
    return f"{step.name:10s} {_word(step.status):11s} {seconds}  {step.detail}"


def _word(status: str) -> str:
    """Return the text that the view shows for a status."""
    return "left out" if status == "skipped" else status
