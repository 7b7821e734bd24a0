"""Command `doctor`: the machine, what runs on it, and a self-test."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from ..options import Json
from ..output import print_json, stdout, styled


def doctor(
    self_test: Annotated[bool, typer.Option("--self-test", help="run kernels against PyTorch: some two minutes")] = False,
    as_json: Json = False,
) -> int:
    """Show which GPU, driver, compiler and packages are here, what can run, and how to install what is missing.

    Examples:
        cuir doctor
        cuir doctor --self-test
    """
    from ...runtime.environment import describe_reach, inspect_environment, inspect_packages
    from ..self_test import run_self_test

    findings, packages = inspect_environment(), inspect_packages()
    reach = describe_reach(findings)
    console = stdout()
    if not as_json:
        for finding in (*findings, *packages):
            remedy = f"  ({finding.remedy})" if finding.remedy else ""
            mark = ("  ", "") if finding.ok else ("- ", "yellow")
            console.print(styled(mark, (f"{finding.name:14}", "bold"), f" {finding.value}{remedy}"), soft_wrap=True)
        console.print()
        for line in reach:
            console.print(line, highlight=False, soft_wrap=True)
    steps = []
    for step in run_self_test() if self_test else ():
        steps.append(step)
        if not as_json:
            color = {"passed": "green", "failed": "bold red"}.get(step.verdict, "yellow")
            reason = f": {step.reason}" if step.reason else ""
            console.print(styled((f"{step.verdict:9}", color), f"{step.name}, {step.seconds:.1f} s{reason}"), soft_wrap=True)
    failed = any(s.verdict == "failed" for s in steps)
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
