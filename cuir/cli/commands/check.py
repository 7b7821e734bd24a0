"""Command `check`: names, types, shapes, roles, and what the architecture allows."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from ..options import Consts, File, Json, KernelName
from ..output import make_styled_text, print_errors, print_json, stderr, stdout

INTERVAL = 0.3  # seconds between looks at a watched file


def check(
    context: typer.Context,
    file: File,
    kernel: KernelName = None,
    const: Consts = None,
    watch: Annotated[bool, typer.Option("--watch", help="check again whenever the file changes, until Ctrl-C")] = False,
    as_json: Json = False,
) -> None:
    """Find errors of a program before it runs: names, types, shapes, roles, what the architecture allows.

    Examples:
        cuir check gemm
        cuir check mine.cuir --watch
    """
    from ..options import not_beside

    if not watch:
        _check(file, kernel, const, as_json)
        return
    not_beside(context, "watch", "prints for people, again and again", "as_json")
    _watch(file, kernel, const)


def _check(file: str, kernel: str | None, const: list[str] | None, as_json: bool) -> None:
    """Check the program once. Raises CuirError with its errors."""
    from ...arguments.requirements import describe_row_requirements
    from ...checking.checker import check as run_check
    from ...runtime.launchable import find_large_tiles, require_launchable
    from ..command_inputs import read_program, read_program_consts
    from ..tables import facts

    program = read_program(file)
    picked, consts = read_program_consts(program, file, kernel, const or ())
    checked = run_check(program, picked.name, consts)
    lowered = require_launchable(checked)
    warnings = find_large_tiles(lowered)
    description = facts(checked)
    tiles = [t for t in lowered.tile_registers if t.count]
    description["tile_registers"] = {t.role: {"estimate": t.count, "limit": t.limit} for t in tiles}
    if tiles:
        estimates = "; ".join(f"tiles of {t.role} take about {t.count} of a thread's {t.limit}" for t in tiles)
        description["lines"].append(f"registers {estimates}")
    if needs := describe_row_requirements(checked):
        description["lines"].append(f"rows      {needs}")
    if as_json:
        print_json({"ok": True, "diagnostics": [], "warnings": [w.as_json() for w in warnings], "kernel": description})
        return
    console = stdout()
    console.print(make_styled_text(("ok", "bold green"), f"  {file}: kernel ", (checked.name, "bold"), f" ({checked.arch})"))
    for line in description["lines"]:
        console.print(f"    {line}", style="dim", soft_wrap=True)
    if warnings:
        print_errors(warnings, False)


def _watch(file: str, kernel: str | None, const: list[str] | None) -> None:
    """Check the program whenever its file changes. Raises CuirError U100 for what is no file."""
    from ...text.diagnostics import CuirError

    path = Path(file)
    if not path.is_file():
        message = f"--watch needs a file, and {file} is a folder" if path.is_dir() else f"--watch needs a file, found {file}"
        raise CuirError.of("U100", message, hint="the path of a .cuir or .py file")
    latest: tuple[int, int] | None = (0, 0)
    while True:
        current = _read_state(path)
        if current != latest:
            words = file if current is not None else f"{file} is gone; it is checked when it is back"
            stderr().print(f"{time.strftime('%H:%M:%S')}  {words}", style="dim", highlight=False)
        if current != latest and current is not None:
            try:
                _check(file, kernel, const, False)
            except CuirError as error:
                print_errors(error.diagnostics, False)
        latest = current
        time.sleep(INTERVAL)


def _read_state(path: Path) -> tuple[int, int] | None:
    """Return time of change and size of a file; None while there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
