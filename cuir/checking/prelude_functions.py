"""The prelude: functions in CuIR text that every program has unless it defines the same name."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from ..syntax.nodes import Program
from ..syntax.parser import parse


@cache
def prelude() -> Program:
    """Parse the program of `prelude.cuir`."""
    return parse((files(__package__) / "prelude.cuir").read_text(encoding="utf-8"), "<prelude>")
