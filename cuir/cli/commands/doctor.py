"""Command `doctor`: the machine, what runs on it, and a self-test."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from ..options import Json
from ..output import make_styled_text, print_json, stdout

if TYPE_CHECKING:
    from ...runtime.environment import Finding
    from ..self_test import Step


def doctor(
    self_test: Annotated[
        bool, typer.Option("--self-test", help="run kernels and compare them with PyTorch, in two minutes at most")
    ] = False,
    as_json: Json = False,
) -> int:
    """Show which GPU, driver, compiler and packages are here, and what can run.

    Also show how to install what is missing.

    Examples:
        cuir doctor
        cuir doctor --self-test
    """
    import cuir

    from ...attn.kernels.card_kernels import describe_attention
    from ...runtime.cards import list_cards
    from ...runtime.environment import describe_reach, inspect_environment, inspect_packages
    from ..live_view import ProgressLine
    from ..self_test import COMMAND, SECONDS, STEPS, run_self_test
    from ..tables import print_table

    findings, packages = inspect_environment(), inspect_packages()
    reach = describe_reach(findings)
    reach += [f"attention on cuda {number}: {describe_attention(card)}" for number, card in enumerate(list_cards())]
    console = stdout()
    if not as_json:
        console.print(f"cuir {cuir.__version__}\n")
        print_table("this machine", ("state", "what", "found"), map(_row, findings))
        print_table("optional packages", ("state", "package", "version and purpose"), map(_row, packages))
        print_table("what works here", ("what", "here"), [line.split(": ", 1) for line in reach])
        if not self_test:
            console.print("cuir doctor --self-test runs kernels and compares them with PyTorch, in two minutes at most", style="dim")
    steps: list[Step] = []

    def show_progress(name: str) -> None:
        view.update(name, len(steps) / len(STEPS))

    with ProgressLine("self-test", quiet=as_json or not self_test) as view:
        for step in run_self_test(STEPS, COMMAND, SECONDS, show_progress) if self_test else ():
            steps.append(step)
            if not as_json:
                color = {"passed": "green", "failed": "bold red", "cut off": "bold red"}.get(step.verdict, "yellow")
                reason = f": {step.reason}" if step.reason else ""
                console.print(make_styled_text((f"{step.verdict:9}", color), f"{step.name}, {step.seconds:.1f} s{reason}"), soft_wrap=True)
    failed = any(s.verdict in ("failed", "cut off", "not run") for s in steps)
    if self_test and not as_json:
        console.print("send all of this with an issue", style="dim")
    if as_json:
        print_json(
            {
                "ok": not failed,
                "diagnostics": [],
                "machine": [asdict(f) for f in findings],
                "packages": [asdict(f) for f in packages],
                "runs": reach,
                "self_test": [asdict(s) for s in steps],
            }
        )
    return int(failed)


def _row(finding: Finding) -> tuple[str, str, str]:
    """Return a table row for a finding: its status, its name, and its value with the remedy."""
    remedy = f"; to get it: {finding.remedy}" if finding.remedy else ""
    return ("ok" if finding.ok else "missing", finding.name, f"{finding.value.removeprefix('none: ')}{remedy}")
