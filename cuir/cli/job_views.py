"""Views of a job: its steps while it runs, and its report.

On a terminal the steps are a table that fills; elsewhere each is a line.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checking.const_defaults import describe_consts
from ..text.phrases import get_share
from .live_view import Estimate, LiveView
from .output import make_styled_text, stderr, stdout
from .tables import print_diff, print_table

if TYPE_CHECKING:
    from ..bridging import BridgeReport, Step


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


def print_bridge(report: BridgeReport, folder: Path) -> None:
    """Print the summary of `cuir bridge`: what was adapted, verified, compiled and timed."""
    console = stdout()
    console.print()
    if report.diff and report.ok:  # else it would push the errors out of sight; it is in the folder
        print_diff(report.diff.splitlines())
        console.print()
    if report.verification is not None:
        print_verification(report.verification)
    if report.timing is not None:
        rows = [
            (r["what"], f"{r['milliseconds']:.3f} ms", f"{r['tflops']:.0f} TFLOP/s") if r["milliseconds"] else (r["what"], "-", r["why"])
            for r in report.timing["rows"]
        ]
        print_table(f"time on {report.timing['device']}, {report.timing['problem']}", ("kernel", "time", "rate"), rows)
    for note in report.notes:
        console.print(f"note: {note}")
    if report.ok:
        console.print(
            f"{report.variant}: verified ({report.verification.runs if report.verification is not None else 0} runs under different schedules){' and compiled' if report.resources else ''}{' and run' if report.timing else ''}",
            style="bold green",
        )
    else:
        console.print(f"{report.variant}: failed", style="bold red")
    for text in report.missing:
        _print_indented("left out", text, "yellow")
    _print_indented(f"in {folder}", ", ".join(report.files))


def _print_indented(head: str, text: str, style: str = "") -> None:
    """Print a head and a text that wraps below itself."""
    from rich.padding import Padding
    from rich.text import Text

    console, line = stdout(), Text(f"{head}: {text}", style=style)
    console.print(Padding(line, (0, 0, 0, 2)) if console.is_terminal else Text("  ") + line)


def print_verification(report: Any) -> None:
    """Print the stages of a verification, each with its verdict and reason."""
    rows = [(stage.name, stage.verdict, f"{stage.seconds:.1f} s", stage.reason) for stage in report.stages]
    print_table(f"verification of {report.kernel} with {describe_consts(report.consts)}", ("question", "verdict", "time", "why"), rows)
    if report.left_open:
        stdout().print(f"note: {report.left_open}", highlight=False)


def print_run(result: Mapping[str, Any]) -> None:
    """Print the result of a run of one kernel."""
    console = stdout()
    console.print(
        make_styled_text(("ok", "bold green"), f"  {result['kernel']} on {result['on']}, {result['seconds']:.2f} s; {result['events']}")
    )
    console.print(f"    consts    {describe_consts(result['consts']) if result['consts'] else 'none'}", style="dim", soft_wrap=True)
    if result["trace"]:
        console.print(f"    trace     written to {result['trace']}", style="dim", soft_wrap=True)
    rows = [
        (
            o["name"],
            o["shape"],
            o["dtype"],
            f"{o['mean']:.4g}",
            f"{o['largest']:.4g}",
            str(o["not_finite"]),
            "-" if o["never_stored"] is None else f"{o['never_stored']:,}",
        )
        for o in result["outputs"]
    ]
    print_table("tensors written", ("name", "shape", "dtype", "mean", "largest", "not finite", "never stored"), rows)
    if result["note"]:
        console.print(f"note: {result['note']}", soft_wrap=True)
    console.print(f"again: {result['replay']}", soft_wrap=True, style="dim")
