"""A rule of races is one file, and both machines find by it: interpreter and explorer."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import torch

import cuir
from cuir.explore import explore

ROOT = Path(__file__).parent.parent
# Stricter than the hardware: a fence after an engine's read, too, before the bytes are written the ordinary way.
RULE = '''"""A missing fence behind an engine's read."""

from __future__ import annotations

from ..accesses import Access, Finding, describe_access, race_rule
from ..orders import E, Order


@race_rule(ordered=True, later=("generic",), earlier=("async",))
def find_missing_fence_behind(new: Access[E], old: Access[E], order: Order[E]) -> Finding | None:
    """Report an ordinary write over bytes that an engine has read, without a fence between."""
    if old.mode != "read" or old.completion is None or order.is_fenced(old.completion):
        return None
    return Finding("R403", f"{describe_access(new)} is not fenced from {describe_access(old)}", new.span, "fence_async() before")
'''
PROGRAM = """\
@kernel(arch="sm_90a")
def k(X: Global[f16, 64, 64], C: Global[f32, 64, 64]):
    s = shared(f16, [64, 64])
    with role("w", warpgroups=1):
        store(s, load(X[0 : 64, :]))
        fence_async()
        r = mma_async(s, s)
        mma_wait(r)
        fence_async()
        store(s, cast(r, f16))
        store(C[0 : 64, :], r)
"""
UNFENCED = PROGRAM.replace("        mma_wait(r)\n        fence_async()\n", "        mma_wait(r)\n")
SCRIPT = """
import json, sys
from tests.test_adding_a_race_rule import find_faults

print(json.dumps(find_faults()))
"""


def find_faults() -> dict[str, list]:
    """Return what interpreter and explorer find in each program."""
    found = {}
    for name, text in (("right", PROGRAM), ("unfenced", UNFENCED)):
        checked = cuir.check(cuir.parse(text))
        arguments = {"X": torch.ones(64, 64, dtype=torch.float16), "C": torch.zeros(64, 64)}
        try:
            cuir.run(checked, arguments)
            run = []
        except cuir.CuirError as error:
            first = error.diagnostics[0]
            run = [first.code, first.message, first.span.line if first.span else 0, first.hint]
        found[name] = [run, [[d.code, d.span.line if d.span else 0] for d in explore(checked, arguments).diagnostics]]
    return found


def test_both_machines_find_by_a_new_rule(tmp_path: Path) -> None:
    assert find_faults() == {"right": [[], []], "unfenced": [[], []]}
    shutil.copytree(ROOT / "cuir", tmp_path / "cuir")
    (tmp_path / "cuir/sync/race_rules/missing_fence_behind.py").write_text(RULE, encoding="utf-8")
    (tmp_path / "tests").mkdir()
    shutil.copy(__file__, tmp_path / "tests")
    output = subprocess.run([sys.executable, "-c", SCRIPT], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert output.returncode == 0, output.stderr
    message = "the write of `s` by w[0] is not fenced from the read of `s` by product #1 by w[0]"
    assert json.loads(output.stdout) == {
        "right": [[], []],
        "unfenced": [["R403", message, 9, "fence_async() before"], [["R403", 9]]],
    }
