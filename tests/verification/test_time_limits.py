"""Time limits have one home, and the command line's default is verification's."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

from cuir import verify
from cuir.cli.commands import verify as command
from cuir.verification import time_limits

ROOM = Path(time_limits.__file__).parent


def test_no_other_module_of_the_room_names_seconds() -> None:
    for path in ROOM.rglob("*.py"):
        lines = path.read_text(encoding="utf-8").split("\n")
        for node in ast.parse("\n".join(lines)).body:
            comment = lines[node.lineno - 1].partition("#")[2]
            if isinstance(node, ast.Assign) and path.name != "time_limits.py":
                assert "seconds" not in comment and not any("SECONDS" in ast.unparse(t) for t in node.targets), f"{path.name}:{node.lineno}"


def test_a_run_has_one_default() -> None:
    assert inspect.signature(verify).parameters["budget"].default == time_limits.RUN
    budgets = [
        inspect.signature(f).parameters["budget"].default
        for _, f in inspect.getmembers(command, inspect.isfunction)
        if "budget" in inspect.signature(f).parameters
    ]
    assert time_limits.RUN in budgets
