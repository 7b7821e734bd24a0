"""What a caller gives where a program is wanted: a program, a decorated kernel, or the path of a file. Owns the words for anything else."""

from __future__ import annotations

import os
from typing import Any

from ..text.diagnostics import CuirError
from .nodes import Program


def program_of(given: Any, function: str) -> Program:
    """The program: as it is, of a function decorated with `@cuir.kernel`, or of a `.cuir` or `.py` file. function: who asks, for the error.

    Raises CuirError U208 for something else, and what `cuir.load` raises for a file.
    """
    if isinstance(given, Program):
        return given
    from .frontend import DecoratedKernel, load

    if isinstance(given, DecoratedKernel):
        return given.program
    if isinstance(given, os.PathLike) or (isinstance(given, str) and given.endswith((".cuir", ".py")) and "\n" not in given):
        return load(given)
    shown, hint = type(given).__name__, "cuir.load(path) and cuir.parse(text) give a program"
    if isinstance(given, str) and "\n" in given:
        shown, hint = "a text", f"cuir.{function}(cuir.parse(text))"
    elif isinstance(given, str):
        shown, hint = f"`{given}`", "the path of a .cuir or .py file; `cuir corpus` lists what the command line knows by name"
    raise CuirError.of("U208", f"cuir.{function} takes a program or the path of one, found {shown}", hint=hint)
