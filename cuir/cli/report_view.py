"""Reports of jobs on a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checking.const_defaults import describe_consts
from .output import make_styled_text, stdout
from .tables import print_diff, print_table

if TYPE_CHECKING:
    from ..bridging import BridgeReport


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
