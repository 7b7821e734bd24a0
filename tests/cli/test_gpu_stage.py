"""`cuir verify --gpu` around the process that has the GPU: here a process without one, which answers, hangs, ends, or is watched by a made-up sanitizer."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cuir import CuirError
from cuir.checking.checker import check
from cuir.cli.gpu_stage import SANITIZED_CASES, Verified, find_sanitizer, gpu_stage
from cuir.interp import run
from cuir.lowering import lower
from cuir.syntax.nodes import Program
from cuir.verification import on_gpu
from cuir.verification.report import Stage

WORKER = """
import os, sys, time
from cuir.text.diagnostics import CuirError
from cuir.performance.timing.worker import serve

def compare(request):
    how = sys.argv[1]
    if request["case"] == 1 and how == "hang":
        time.sleep(600)
    if request["case"] == 1 and how == "end":
        os._exit(7)
    if request["case"] == 1 and how == "wrong":
        raise CuirError.of("V402", "launches differ", hint="look")
    return {"case": str(request["case"]), "from the interpreter": 1e-5 * request["case"]}

def stuck(request):
    return {"stuck": [{"line": int(sys.argv[2]), "cta": 3, "thread": 128, "parity": 1, "state": 5}]}

sys.exit(serve({"compare": compare, "stuck": stuck}))
"""
# writes its report once the process that it started has ended, as the real one does
SANITIZER = """#!{python}
import subprocess, sys
log = sys.argv[sys.argv.index("--log-file") + 1]
command = sys.argv[sys.argv.index({first!r}, 2):]
code = subprocess.run(command).returncode
open(log, "w").write({report!r})
sys.exit(code)
"""
REPORT = """========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 2 bytes
=========     at flash_fwd(CUtensorMap, float *)+0x530 in /tmp/x/flash_fwd.cu:{line}
=========     by thread (0,0,0) in block (0,0,0)
=========     Access at 0x7f00 is out of bounds
=========
========= ERROR SUMMARY: 1 error
"""


def make_verified() -> Verified:
    return Verified("flash_fwd", "causal", (), "flash_fwd_sm90", None, {"T": "f16", "D": 64}, "quick")


@pytest.fixture
def worker(tmp_path: Path) -> Callable[[str], list[str]]:
    (tmp_path / "worker.py").write_text(WORKER)
    return lambda how: [sys.executable, str(tmp_path / "worker.py"), how]


def run_stage(command: list[str], tool: str | None = None, sanitizer: str = "") -> Stage:
    return gpu_stage(
        make_verified(), tool, lambda text: None, command=command, sanitizer=sanitizer, limit=20.0 if "hang" not in command else 4.0
    )


def test_every_problem_is_asked(worker: Callable[[str], list[str]]) -> None:
    stage = run_stage(worker("right"))
    assert stage.verdict == "passed" and len(stage.rows) == len(make_verified().cases) >= 10 and "launches alike" in stage.reason


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("how", "code", "words"),
    [
        ("hang", "V403", "hangs on the GPU"),
        ("end", "V403", "took its process with it: the process ended with 7"),
        ("wrong", "V402", "launches differ"),
    ],
)
def test_the_first_that_fails_is_named(worker: Callable[[str], list[str]], how: str, code: str, words: str) -> None:
    stage = run_stage(worker(how))
    (result,) = stage.diagnostics
    assert stage.verdict == "failed" and len(stage.rows) == 1
    assert result.code == code and words in result.message and result.span == make_verified().checked.origin.span and result.hint
    if code == "V403":
        assert str(make_verified().cases[1]) in result.message and "flash_fwd" in result.message


def test_the_wait_that_hangs_is_named(worker: Callable[[str], list[str]]) -> None:
    line, span = next((n, s) for n, s in lower(make_verified().checked).line_map.items() if ".wait(" in s.source.line(s.line))
    (result,) = run_stage([*worker("hang"), str(line)]).diagnostics
    assert result.code == "V403" and result.span == span and "parity 1" in result.notes[0].message and "CTA 3" in result.notes[0].message


def write_sanitizer(tmp_path: Path, report: str) -> str:
    path = tmp_path / "compute-sanitizer"
    path.write_text(SANITIZER.format(python=sys.executable, report=report, first=sys.executable))
    path.chmod(0o755)
    return str(path)


@pytest.mark.sweep(4)
@pytest.mark.parametrize("how", ["right", "end"])
def test_a_report_is_told_as_a_line_of_the_program(worker: Callable[[str], list[str]], tmp_path: Path, how: str) -> None:
    line, span = next((n, s) for n, s in lower(make_verified().checked).line_map.items() if "O[" in s.source.line(s.line))
    stage = run_stage(worker(how), "memcheck", write_sanitizer(tmp_path, REPORT.format(line=line)))
    assert stage.verdict == "failed" and stage.diagnostics[0].code == "V404" and stage.diagnostics[0].span == span
    assert len(stage.diagnostics) == (1 if how == "right" else 2)


def test_no_report_is_a_pass_of_the_smallest_problems(worker: Callable[[str], list[str]], tmp_path: Path) -> None:
    stage = run_stage(
        worker("right"), "racecheck", write_sanitizer(tmp_path, "========= COMPUTE-SANITIZER\n========= RACECHECK SUMMARY: 0 hazards\n")
    )
    assert stage.verdict == "passed" and len(stage.rows) == SANITIZED_CASES and "no report of racecheck" in stage.reason


def test_a_sanitizer_that_says_nothing_is_no_pass(worker: Callable[[str], list[str]], tmp_path: Path) -> None:
    stage = run_stage(worker("right"), "memcheck", write_sanitizer(tmp_path, ""))
    assert stage.verdict == "failed" and stage.diagnostics[0].code == "U507"


def test_what_is_missing_is_said(cuir: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    output = cuir("verify", "causal", "--gpu", "--head-dim", "64")
    assert output.code == 2 and "U501" in output.err
    output = cuir("verify", "causal", "--sanitizer", "memcheck")
    assert output.code == 2 and "--gpu --sanitizer memcheck" in output.err
    with pytest.raises(CuirError, match="memcheck or racecheck"):
        find_sanitizer("initcheck")
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(CuirError, match="U507"):
        find_sanitizer("memcheck")


def test_a_request_survives_the_way_to_the_other_process() -> None:
    repeated = Verified.from_json(make_verified().as_json())
    assert repeated == make_verified() and repeated.cases == make_verified().cases and repeated.specification.name == "causal"


def test_the_process_runs_what_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker's side, the interpreter in the place of the compiled kernel."""
    from cuir.cli.worker_process import _compile_job, compare

    def make_kernel(program: Program, *, kernel: str | None, consts: dict[str, Any]) -> SimpleNamespace:
        checked = check(program, kernel, consts)
        return SimpleNamespace(launch=lambda arguments: run(checked, arguments) and None)

    monkeypatch.setattr("cuir.runtime.compiled.compile", make_kernel)
    monkeypatch.setattr("torch.cuda.synchronize", lambda: None)
    monkeypatch.setattr(on_gpu, "compare", functools.partial(on_gpu.compare, device="cpu"))
    _compile_job.cache_clear()
    short = min(range(len(make_verified().cases)), key=lambda i: make_verified().cases[i].lengths.M)
    answer = json.loads(json.dumps(compare(json.loads(json.dumps({"job": make_verified().as_json(), "case": short})))))
    assert answer["case"] == str(make_verified().cases[short]) and answer["from the interpreter"] == 0 and answer["launches alike"] == 4
    _compile_job.cache_clear()
