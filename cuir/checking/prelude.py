"""What every program has without writing it: functions in CuIR text, replaced by a program's own of the same name."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from ..syntax.nodes import Program
from ..syntax.parser import parse


@cache
def prelude() -> Program:
    """The program of `prelude.cuir`."""
    return parse((files(__package__) / "prelude.cuir").read_text(encoding="utf-8"), "<prelude>")
