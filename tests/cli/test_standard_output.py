"""With `--json` stdout is one object, whatever a specification prints or however it ends; exit code 2 is for a specification that is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

KERNEL = """
@kernel(arch="sm_80")
def double(X: Global[f32, M, 16], Y: Global[f32, M, 16]):
    work = tiles(cdiv(M, 16))
    with role("all", warps=1):
        for t in work:
            q = t * 16 + rows(16)
            store(Y[q, cols(16)], X[q, cols(16)] * 2.0)
"""


@pytest.fixture
def verify(tmp_path: Path, cuir: Callable[..., Any]) -> Callable[..., Any]:
    """`cuir verify` of a kernel against the text of a specification, in this process."""

    def call(text: str, *more: str) -> Any:
        (tmp_path / "double.cuir").write_text(KERNEL)
        (tmp_path / "mine.py").write_text(text)
        return cuir("verify", tmp_path / "double.cuir", "--against", tmp_path / "mine.py", *more)

    return call


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        ("import sys\nsys.exit(0)\n", "X119", 2),
        ("exit()\n", "X119", 1),
        ("import os\nos._exit(0)\n", "X119", 2),
        ("raise KeyboardInterrupt\n", "X119", 1),
        ("n = 0\nwhile True:\n    n += 1\n", "X125", None),
        ("def reference(x):\n    raise SystemExit\n", "X119", 2),
        ("def reference(x):\n    exit(0)\n", "X119", 2),
        ("def reference(x):\n    import os; os._exit(0)\n", "X119", 2),
        ("def reference(x): return x * 2\n\ndef sizes(drawn):\n    quit()\n", "X119", 4),
        ("def reference(x): return x * 2\n\ndef inputs(sizes):\n    while True: pass\n", "X125", 4),
        ("def reference(x): return x * 2\n\ndef sizes(drawn):\n    while True: pass\n", "X125", 4),
        ("def reference(x):\n    while True:\n        pass\n", "X125", None),
        ("def reference(x):\n    return reference(x)\n", "X113", 2),
        ("import torch\ndef reference(x):\n    return x * 2 + torch.rand(())\n", "X118", 2),
        ("def reference(x):\n    return x.mul_(2)\n", "X126", 1),
        ("def reference(x):\n    return x * 2j\n", "X106", 1),
        ("import warnings\ndef reference(x):\n    warnings.simplefilter('error')\n    warnings.warn('no')\n", "X113", 4),
    ],
)
def test_a_specification_that_is_none_is_a_wrong_call(verify: Callable[..., Any], text: str, code: str, line: int | None) -> None:
    report = verify(text, "--json", "--budget", "0.3")
    result = report.json["diagnostics"][0]
    assert report.code == 2 and not report.json["ok"] and result["code"] == code
    assert line is None or result["span"]["line"] == line
    report = verify(text, "--budget", "0.3")
    assert report.code == 2 and f"error[{code}]" in report.err


def test_what_a_specification_prints_is_on_stderr(verify: Callable[..., Any]) -> None:
    text = "print('at import')\ndef reference(x):\n    print('in a call')\n    return x * 2\n"
    report = verify(text, "--json")
    assert report.code == 0 and report.json["ok"] and "at import" in report.err and "in a call" in report.err
    report = verify(text)
    assert report.code == 0 and "in a call" not in report.out and "in a call" in report.err


def test_a_single_length_is_in_every_verdict(verify: Callable[..., Any]) -> None:
    text = "def reference(x): return x * 2\n\ndef sizes(drawn): return {'M': 48}\n"
    report = verify(text, "--json")
    assert report.code == 0 and "M=48" in report.json["verification"]["warnings"][0]
    assert "M=48" in " ".join(verify(text).out.split())


PROCESS = """
import os, sys, threading, time

print("by print")
os.write(1, b"by descriptor\\n")
sys.__stdout__.write("by the first stdout\\n")
threading.Thread(target=time.sleep, args=(600,)).start()

import atexit
atexit.register(print, "at exit")

def reference(x):
    os.system("echo by a child")
    return x * 2
"""
STUBBORN = """
def reference(x):
    while True:
        try:
            x = x * 1
        except BaseException:
            pass
"""


@pytest.mark.sweep(4)
@pytest.mark.parametrize(("text", "code"), [(PROCESS, 0), (STUBBORN, 2)])
def test_a_process_prints_one_object_and_ends(tmp_path: Path, text: str, code: int) -> None:
    """Prints by C code and children, threads that do not end, and functions that swallow every exception."""
    (tmp_path / "double.cuir").write_text(KERNEL)
    (tmp_path / "mine.py").write_text(text)
    command = [sys.executable, "-m", "cuir", "verify", "double.cuir", "--against", "mine.py", "--json", "--budget", "0.3"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ended.returncode == code, ended.stderr
    assert json.loads(ended.stdout)["ok"] is (code == 0)
    if code:
        assert "X125" in ended.stdout
    else:
        assert all(f"by {description}" in ended.stderr for description in ("print", "descriptor", "the first stdout", "a child"))


ENDING = """
import atexit, torch
from cuir.cli.standard_output import end_process

class Kept:
    def __del__(self):
        print("freed")

kept = Kept()
atexit.register(print, "at exit")
print("before")
end_process(3)
"""


@pytest.mark.thorough
def test_a_process_ends_without_freeing_what_pytorch_made() -> None:
    """Exit functions run, and what is printed is written; where that is impossible, Python says so."""
    command, buffered = [sys.executable, "-c", ENDING], {**os.environ, "PYTHONUNBUFFERED": ""}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, env=buffered)
    assert (ended.returncode, ended.stdout) == (3, "before\nat exit\n"), ended.stderr
    with open("/dev/full", "w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, env=buffered)
    assert ended.returncode == 120 and "No space left" in ended.stderr
