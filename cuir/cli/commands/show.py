"""Command `show`: a program in canonical form, or its difference to another."""

from __future__ import annotations

from typing import Annotated

import typer

from ..completion import complete_program
from ..options import File, Json
from ..output import print_json, stdout


def show(
    file: File,
    diff: Annotated[
        str | None,
        typer.Option(
            "--diff", metavar="FILE", help="another program: show what differs", autocompletion=complete_program, show_default=False
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Print a program in canonical form, or its difference to another.

    Examples:
        cuir show flash_fwd_sm90
        cuir show mine.cuir --diff gemm
    """
    from ...syntax.printer import show as print_program
    from ..command_inputs import read_program
    from ..tables import compute_unified_diff, print_code, print_diff

    text = print_program(read_program(file))
    if diff is None:
        if as_json:
            print_json({"ok": True, "diagnostics": [], "text": text})
        else:
            print_code(text)
        return
    lines = compute_unified_diff(text, print_program(read_program(diff)), file, diff)
    if as_json:
        print_json({"ok": True, "diagnostics": [], "diff": "\n".join(lines), "equal": not lines})
    elif lines:
        print_diff(lines)
    else:
        stdout().print("the programs are equal")
