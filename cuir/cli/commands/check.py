"""Command `check`: names, types, shapes, roles, and what the architecture allows."""

from __future__ import annotations

from ..options import Consts, File, Json, KernelName
from ..output import print_json, stdout, styled


def check(file: File, kernel: KernelName = None, const: Consts = None, as_json: Json = False) -> None:
    """Check a program: names, types, shapes, roles, what the architecture allows."""
    from ...arguments.requirements import describe_row_requirements
    from ...checking.checker import check as run_check
    from ...runtime.launchable import require_launchable
    from ..command_inputs import read_program, read_program_consts
    from ..tables import facts

    program = read_program(file)
    picked, consts = read_program_consts(program, file, kernel, const or ())
    checked = run_check(program, picked.name, consts)
    require_launchable(checked)
    description = facts(checked)
    if needs := describe_row_requirements(checked):
        description["lines"].append(f"rows      {needs}")
    if as_json:
        print_json({"ok": True, "diagnostics": [], "kernel": description})
        return
    console = stdout()
    console.print(styled(("ok", "bold green"), f"  {file}: kernel ", (checked.name, "bold"), f" ({checked.arch})"))
    for line in description["lines"]:
        console.print(f"    {line}", style="dim", soft_wrap=True)
