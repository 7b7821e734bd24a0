"""Freed memory between objects that live on is given back: at once, and at the end of each verification.

Time limits have one home, and the command line's default is verification's.
"""

from __future__ import annotations

import ast
import ctypes
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from cuir import parse, verify
from cuir.cli.commands import verify as command
from cuir.verification import resource_limits, stages
from tests.strategies.memory import read_resident

needs_glibc = pytest.mark.skipif(not read_resident() or not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="needs Linux and glibc")


FRAGMENTED = """
import torch
from cuir.verification.resource_limits import release_freed_memory
from tests.strategies.memory import read_resident

before = read_resident()
blocks = [torch.zeros(10_000) for _ in range(4_000)]  # 160 MB, of blocks that are no mappings of their own
kept = blocks[::100]
del blocks
fragmented = read_resident()
release_freed_memory()
print(len(kept), fragmented - before, read_resident() - before)
"""


@pytest.mark.thorough
@needs_glibc
def test_memory_between_living_objects_is_given_back() -> None:
    """In a process of its own: one with free memory of earlier tests does not grow."""
    output = subprocess.run([sys.executable, "-c", FRAGMENTED], capture_output=True, text=True, check=True)
    retained, fragmented, remaining = map(float, output.stdout.split())
    assert retained == 40 and fragmented > 100 and remaining < 40


SUMS = """
@kernel(arch="sm_80")
def k(X: Global[f32, M], Y: Global[f32, M]):
    work = tiles(M)
    with role("all", warps=1):
        for t in work:
            store(Y[t], X[t] + {term})
"""


def test_a_verification_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[bool] = []
    monkeypatch.setattr(stages, "release_freed_memory", lambda: called.append(True))
    for term, ok in (("0.0", True), ("1.0", False)):
        assert verify(parse(SUMS.format(term=term)), lambda x: x, seeded=0, shrink=False).ok == ok
    assert called == [True, True]


ROOM = Path(resource_limits.__file__).parent


def test_no_other_module_of_the_room_names_seconds() -> None:
    for path in ROOM.rglob("*.py"):
        lines = path.read_text(encoding="utf-8").split("\n")
        for node in ast.parse("\n".join(lines)).body:
            comment = lines[node.lineno - 1].partition("#")[2]
            if isinstance(node, ast.Assign) and path.name != "resource_limits.py":
                assert "seconds" not in comment and not any("SECONDS" in ast.unparse(t) for t in node.targets), f"{path.name}:{node.lineno}"


def test_a_run_has_one_default() -> None:
    assert inspect.signature(verify).parameters["budget"].default == resource_limits.RUN
    budgets = [
        inspect.signature(f).parameters["budget"].default
        for _, f in inspect.getmembers(command, inspect.isfunction)
        if "budget" in inspect.signature(f).parameters
    ]
    assert resource_limits.RUN in budgets
