"""Arguments of callers: numbers (also NumPy's), and programs, decorated kernels or paths."""

from __future__ import annotations

import numbers
import operator
import os
from typing import Any

from ..text.diagnostics import CuirError
from .nodes import Program


def plain_number(x: Any) -> Any:
    """Return a real number (NumPy's, a fraction) as a Python int or float.

    Anything else, bools and tensors included, is returned unchanged.
    """
    if x is None or isinstance(x, (int, float)) or not isinstance(x, numbers.Real):
        return x
    return operator.index(x) if isinstance(x, numbers.Integral) else float(x)


def program_of(argument: Any, function: str) -> Program:
    """Return the program that an argument denotes.

    A program as it is, that of a function decorated with `@cuir.kernel`, or that of a `.cuir` or `.py` file. function:
    the caller, for the error. Raises CuirError U208 for something else, and what `cuir.load` raises for a file.
    """
    if isinstance(argument, Program):
        return argument
    from .frontend import DecoratedKernel, load

    if isinstance(argument, DecoratedKernel):
        return argument.program
    if isinstance(argument, os.PathLike) or (isinstance(argument, str) and argument.endswith((".cuir", ".py")) and "\n" not in argument):
        return load(argument)
    description, hint = type(argument).__name__, "cuir.load(path) and cuir.parse(text) give a program"
    if isinstance(argument, str) and "\n" in argument:
        description, hint = "a text", f"cuir.{function}(cuir.parse(text))"
    elif isinstance(argument, str):
        description, hint = f"`{argument}`", "the path of a .cuir or .py file; `cuir corpus` lists what the command line knows by name"
    raise CuirError.of("U208", f"cuir.{function} takes a program or the path of one, found {description}", hint=hint)


__all__ = ["plain_number", "program_of"]
