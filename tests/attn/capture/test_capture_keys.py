"""Digests of capture keys: those of copies of a file and of other processes are the same, those of other code are not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cuir.attn.capture.capture_keys import make_capture_key

MOD = """
def mod(s, b, h, q, k, *, cap=3):
    inner = lambda x: x + 1
    return s * 2.0 if h in {"a", "b", "c"} else (inner(s), (1, 2))[0]
"""


def digest(text: str, name: str = "one.py") -> str:
    scope: dict[str, Any] = {}
    exec(compile(text, name, "exec", dont_inherit=True), scope)
    return make_capture_key(scope["mod"]).digest()


def test_a_copy_of_a_file_has_the_same_digest() -> None:
    assert digest(MOD) == digest(MOD, "elsewhere/two.py") == digest("# a line more\n" + MOD)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("2.0", "2"),
        ("2.0", "-2.0"),
        ("x + 1", "x + 2"),
        ("x + 1", "x - 1"),
        ('"c"', '"d"'),
        ("(1, 2)", "(1, True)"),
        ("(1, 2)", "((1,), 2)"),
        ("h in", "b in"),
        ("*, cap", "cap"),
        ("s * 2.0", "s.abs() * 2.0"),
    ],
)
def test_other_code_has_another_digest(old: str, new: str) -> None:
    assert MOD.replace(old, new) != MOD and digest(MOD) != digest(MOD.replace(old, new))


@pytest.mark.thorough
def test_another_process_has_the_same_digest_from_source_and_from_byte_code(tmp_path: Path) -> None:
    (tmp_path / "mods.py").write_text(MOD)
    script = """
import importlib, pathlib, sys
from cuir.attn.capture.capture_keys import make_capture_key
for byte_code in (False, True):
    importlib.invalidate_caches()
    assert bool(list(pathlib.Path(".").glob("__pycache__/mods.*.pyc"))) == byte_code
    print(make_capture_key(importlib.import_module("mods").mod).digest())
    del sys.modules["mods"]
"""
    (tmp_path / "use.py").write_text(script)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    digests = subprocess.run([sys.executable, "use.py"], cwd=tmp_path, capture_output=True, text=True, check=True, env=environment).stdout
    assert digests == 2 * f"{digest(MOD)}\n"
