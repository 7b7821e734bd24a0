"""The same faults on a GPU and under compute-sanitizer, without either: the interpreter launches, processes are made up, files are cut short."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.other_tools import faults_on_gpu, launches
from benchmarks.other_tools.faults_on_gpu import NOT_RUN, SILENT, TIME_OUT, Clock, interpret_log, launch_fault, read_outcomes, run_all
from benchmarks.other_tools.launches import DIFFERS, ENDED, ERROR, HANGS, RIGHT, WRONG, Hangs, Problem, observe, pad
from benchmarks.other_tools.planted_faults import FILE, Fault, Origin, format_faults, in_turn, origin, read_faults
from benchmarks.other_tools.tools_table import AS_ORIGINAL, REPORTS, RESULTS, TOOLS, list_unseen, markdown, outcomes_of, row_of, summary
from cuir import CuirError
from cuir.checking.checked import Checked
from cuir.checking.checker import check
from cuir.interp import run
from cuir.syntax.parser import parse
from cuir.verification.values.cases import Draw

PROBLEM = Problem(Draw("small", {"M": 70, "N": 41, "K": 65}), 2, 2, 2)


@cache
def gemm() -> tuple[Origin, Checked]:
    of = origin("gemm")
    return of, check(of.program, of.kernel, {**of.consts, "BN": 64})


def interpret(arguments: Mapping[str, Any], grid: int | None) -> None:
    run(gemm()[1], arguments, grid=grid)


class Spoiled:
    """The interpreter, and a wrong element of C in some launches."""

    def __init__(self, *numbers: int):
        self.numbers, self.count = numbers, 0

    def __call__(self, arguments: Mapping[str, Any], grid: int | None) -> None:
        interpret(arguments, grid)
        if self.count in self.numbers:
            arguments["C"][3, 5] += 7.0
        self.count += 1


def test_the_original_is_right_also_where_rows_are_padded() -> None:
    observed: list[Any] = []

    def launching(arguments: Mapping[str, Any], grid: int | None) -> None:
        assert arguments["C"].isnan().all() and grid == 2
        assert all(s % 8 == 0 for x in ("A", "Bt", "C") for s in arguments[x].stride()[:-1])
        interpret(arguments, grid)
        observed.append(arguments["C"].clone())

    result = observe(*gemm(), [PROBLEM], launching, "cpu")
    assert result["outcome"] == RIGHT and result["launches"] == 4
    assert torch.equal(observed[0], observed[2]) and not torch.equal(observed[0], observed[1])  # inputs take turns


@pytest.mark.parametrize(("numbers", "outcome", "says"), [((0, 1, 2, 3), WRONG, "V301"), ((2,), DIFFERS, "1 of 2 launches right")])
def test_wrong_results_are_seen(numbers: tuple[int, ...], outcome: str, says: str) -> None:
    result = observe(*gemm(), [PROBLEM, PROBLEM], Spoiled(*numbers), "cpu")
    assert result["outcome"] == outcome and says in result["says"] and result["launches"] == 4 and "small" in result["problem"]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(Hangs("no end"), HANGS), (RuntimeError("CUDA error: misaligned"), ERROR), (CuirError.of("L011", "the driver refuses"), ERROR)],
)
def test_launches_that_do_not_end_well(error: Exception, outcome: str) -> None:
    def launching(arguments: Mapping[str, Any], grid: int | None) -> None:
        raise error

    result = observe(*gemm(), [PROBLEM], launching, "cpu")
    assert result["outcome"] == outcome and result["launches"] == 1 and result["says"]


def test_padding_keeps_what_is_aligned() -> None:
    x = torch.arange(12.0).view(3, 4)
    assert pad(x) is x and pad(x[:, 0]).shape == (3,)
    wide = pad(x[:, :3].contiguous())
    assert wide.shape == (3, 4) and torch.equal(wide[:, :3], x[:, :3])


def test_a_tool_gets_few_small_problems_and_a_test_gets_all() -> None:
    for name in ("gemm", "flash_fwd"):
        of = origin(name)
        checked = check(of.program, of.kernel, of.consts)
        every, few = launches.problems(of, checked), launches.list_sanitizer_problems(of, checked)
        assert {p.case for p in few if isinstance(p.case, launches.Case)} <= {p.case for p in every if isinstance(p.case, launches.Case)}
        assert all(p.data * p.rounds == 1 for p in few) and len(few) < len(every)
        assert all(p.data * p.rounds == 20 for p in every if p.grid is not None)


# ---- the file of faults
def test_each_fault_on_file_is_what_it_says() -> None:
    faults = read_faults()
    assert len({f.id for f in faults}) == len(faults) > 90
    assert [f.fault for f in faults[:3]] == [0, 0, 0] and {f.kernel for f in faults} == {f.kernel for f in faults[:3]}
    assert {f.fault for f in faults} == {0, *range(1, 16)} - {14}  # the checker refuses what takes too much
    assert in_turn(faults) == faults
    texts = {f.kernel: f.program for f in faults if not f.fault}
    for f in faults:
        assert (f.program != texts[f.kernel]) == bool(f.fault) == bool(f.stage) and f.stage != "well-formed"
    f = next(f for f in reversed(faults) if f.kernel == "gemm")
    of = origin("gemm")
    assert check(parse(f.program), of.kernel, of.consts).name == "gemm"


def test_a_file_is_written_as_it_was_read(tmp_path: Path) -> None:
    """Programs are files of changes: at the start, at the end, of added and of left out lines."""
    assert format_faults(read_faults()) == FILE.read_text(encoding="utf-8")
    control = Fault("c", "gemm", 0, "", (1, 1), "", "", "", "", "", "a\nb\nc\n")
    texts = ["", "b\nc\n", "a\nb\n", "a\nb\nc\nd\n", "x\na\nb\nc\n", "a\nb\nc", "c\nb\na\n", "a\nx\ny\nc\n", "a\nb\nc\n"]
    faults = [control, *(replace(control, id=str(n), fault=1, program=text) for n, text in enumerate(texts))]
    path = tmp_path / "faults.jsonl"
    path.write_text(format_faults(faults), encoding="utf-8")
    assert read_faults(path) == faults


def test_a_line_that_is_no_fault_is_named(tmp_path: Path) -> None:
    path = tmp_path / "faults.jsonl"
    path.write_text('{"id": 3}\n')
    with pytest.raises(ValueError, match="line 1"):
        read_faults(path)


# ---- order, limits, files
FAULTS = [Fault(f"f{n}", "gemm", n % 3, "op", (1, 1), "w", "schedules" if n % 3 else "", "R401", "m", "", "text") for n in range(6)]


def counting(calls: list[tuple[str, str, bool]], outcomes: Mapping[tuple[str, str], str]) -> faults_on_gpu.Runner:
    def runner(fault: Fault, under: str, hangs: bool, clock: Clock) -> dict[str, Any]:
        calls.append((fault.id, under, hangs))
        return {"outcome": outcomes.get((fault.id, under), SILENT if under != RESULTS else RIGHT), "says": ""}

    return runner


def test_results_come_first_and_a_tool_knows_what_hangs() -> None:
    calls: list[tuple[str, str, bool]] = []
    retained: list[dict[str, Any]] = []
    run_all(FAULTS, {}, [RESULTS, *TOOLS], counting(calls, {("f1", RESULTS): HANGS}), 1, Clock(60), retained.append)
    assert [c[:2] for c in calls[:6]] == [(f.id, RESULTS) for f in FAULTS]
    assert [c[:2] for c in calls[6:9]] == [("f0", t) for t in TOOLS]
    assert calls[-3:] == [("f1", t, True) for t in TOOLS] and {c[0] for c in calls if c[2]} == {"f1"} and len(retained) == 24


def test_a_run_goes_on_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    lines = [{"machine": "H"}, {"id": "f1", "under": RESULTS, "outcome": HANGS}, {"id": "f0", "under": "racecheck", "outcome": NOT_RUN}]
    path.write_text("\n".join(json.dumps(x) for x in lines) + '\n{"id": "f0", "und')
    expected_values = read_outcomes(path)
    assert expected_values == {("f1", RESULTS): HANGS}
    calls: list[tuple[str, str, bool]] = []
    run_all(FAULTS[:2], expected_values, ["racecheck"], counting(calls, {}), 2, Clock(60), lambda record: None)
    assert sorted(calls) == [("f0", "racecheck", False), ("f1", "racecheck", True)]
    path.write_text('{"id": 1}\n')
    with pytest.raises(ValueError, match="line 1"):
        read_outcomes(path)


def test_nothing_begins_after_the_limit_and_what_is_cut_off_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, str, bool]] = []
    retained: list[dict[str, Any]] = []
    run_all(FAULTS, {}, [RESULTS], counting(calls, {}), 2, Clock(0), retained.append)
    assert not calls and not retained
    monkeypatch.setattr(Clock, "over", False)
    run_all(FAULTS[:2], {}, [RESULTS], counting(calls, {("f0", RESULTS): HANGS}), 2, Clock(-100), retained.append)
    assert [k["id"] for k in retained] == ["f1"] and Clock(-100).at_most(50) < 1


# ---- processes and logs
WORKER = """
import os, sys, time
from cuir.performance.timing.worker import serve

def launches(request):
    how = sys.argv[1]
    if how == "hangs":
        time.sleep(600)
    if how == "ends":
        os._exit(7)
    return {"outcome": how, "problem": "", "says": str(request["seconds"]), "launches": 3}

sys.exit(serve({"prepare": lambda request: {}, "launches": launches, "results": launches}))
"""
SANITIZER = """#!{python}
import subprocess, sys
if "--help" in sys.argv:
    print("  --port arg (=49152)\\n  --show-backtrace arg (=yes)")
    sys.exit()
assert "--port" in sys.argv and "--show-backtrace" in sys.argv and "--racecheck-num-workers" not in sys.argv
log = sys.argv[sys.argv.index("--log-file") + 1]
assert sys.argv[sys.argv.index("--tool") + 1] == "synccheck"
subprocess.run(sys.argv[sys.argv.index({python!r}, 1):])
open(log, "w").write("========= COMPUTE-SANITIZER\\n========= ERROR SUMMARY: 0 errors\\n")
"""
RACE = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at gemm(CUtensorMap)+0x530 in /tmp/x/gemm.cu:{line}
=========     and Read access at gemm(CUtensorMap)+0x1b0 in /tmp/x/gemm.cu:{line} [32 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""


@pytest.mark.parametrize(("how", "outcome"), [(RIGHT, RIGHT), ("ends", ERROR), ("hangs", HANGS)])
def test_the_process_is_asked_and_may_be_lost(how: str, outcome: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults_on_gpu, "RESULTS_LIMIT", 1.0 if how == "hangs" else 60.0)
    result = launch_fault(FAULTS[1], RESULTS, False, Clock(60), command=[sys.executable, "-c", WORKER, how])
    assert result["outcome"] == outcome and result["says"]


def test_a_tool_around_the_process(tmp_path: Path) -> None:
    sanitizer = tmp_path / "compute-sanitizer"
    sanitizer.write_text(SANITIZER.format(python=sys.executable))
    sanitizer.chmod(0o755)
    result = launch_fault(FAULTS[1], "synccheck", False, Clock(60), str(sanitizer), [sys.executable, "-c", WORKER, ENDED])
    assert result["outcome"] == SILENT and result["launches"] == 3


def test_what_a_log_means() -> None:
    fault = replace(FAULTS[1], program=next(f for f in read_faults() if f.kernel == "gemm").program)
    ended, hung, failed = ({"outcome": o, "problem": "", "says": "x", "launches": 1} for o in (ENDED, HANGS, ERROR))
    clean = "========= ERROR SUMMARY: 0 errors\n"
    assert [interpret_log(fault, a, clean, False)["outcome"] for a in (ended, failed)] == [SILENT, ERROR]
    assert [interpret_log(fault, hung, "", expected_values)["outcome"] for expected_values in (True, False)] == [HANGS, TIME_OUT]
    assert interpret_log(fault, ended, "", False)["outcome"] == NOT_RUN
    stuck = interpret_log(fault, hung, "========= COMPUTE-SANITIZER\n========= Error: Deadlock detected in gemm\n", True)
    assert stuck["outcome"] == REPORTS and "Deadlock" in stuck["says"]
    result = interpret_log(fault, ended, RACE.format(line=1), False)
    assert result["outcome"] == REPORTS and result["reports"] == 1 and "Race reported" in result["says"]


# ---- the table
def test_the_table_counts_what_was_seen_by_what() -> None:
    outcomes = {(f.id, RESULTS): RIGHT for f in FAULTS} | {(f.id, t): SILENT for f in FAULTS for t in TOOLS if f.id != "f5"}
    outcomes |= {("f1", RESULTS): WRONG, ("f4", "racecheck"): REPORTS, ("f2", RESULTS): HANGS, ("f2", "memcheck"): HANGS}
    row = row_of([f for f in FAULTS if f.fault], outcomes)
    assert (len(row.faults), row.any, row.tool_alone) == (4, 3, 1) and row.tools == {
        "racecheck": (1, 3),
        "memcheck": (0, 3),
        "synccheck": (0, 3),
    }
    lines = markdown(FAULTS, outcomes).splitlines()
    assert len(lines) == 6 and len({line.count("|") for line in lines}) == 1
    assert lines[2].startswith("| 1 | ") and " | 2 | 1 | " in lines[2] and lines[4].startswith("| all |  | 4 | 2 | 1/3 | 0/3 | 0/3 |")
    assert lines[5].startswith("| none | no fault: the kernels as they are | 2 | 0 |")
    message = summary(FAULTS, outcomes)
    assert "(1 wrong, 0 differ from run to run, 1 hang, 0 end in an error)" in message and "refuses all 4 faults (schedules 4)" in message
    assert "Of 4 faults that ran, results showed 2" in message and "a tool reports 1 of these" in message
    assert [line.split(":")[0] for line in list_unseen(FAULTS, outcomes)] == ["class 2, gemm, op"]
    assert "Of 0 faults" in summary([], {}) and markdown([], {})


def test_a_report_that_the_original_has_too_says_nothing_of_a_fault() -> None:
    def line(name: str, fault: int, kernel: str, reports: int, log: str) -> dict[str, object]:
        return {
            "id": name,
            "under": "racecheck",
            "class": fault,
            "kernel": kernel,
            "outcome": REPORTS,
            "reports": reports,
            "says": "",
            "log": log,
        }

    race, deadlock = "========= Error: Race reported between", "========= Deadlock detected in Cuda::barrier wait"
    lines = [
        line("same", 1, "gemm", 2, race),
        line("control", 0, "gemm", 2, race),
        line("fewer", 1, "gemm", 1, race),
        line("more", 1, "gemm", 3, race),
        line("other", 1, "gemm", 2, deadlock),
        line("both", 1, "gemm", 2, f"{race}\n{deadlock}"),
        line("elsewhere", 1, "flash_fwd", 2, race),
        {**line("silent", 1, "gemm", 0, ""), "outcome": SILENT},
    ]
    results = {name: outcome for (name, _), outcome in outcomes_of(lines).items()}
    assert results == {
        "same": AS_ORIGINAL,
        "control": REPORTS,
        "fewer": AS_ORIGINAL,
        "more": REPORTS,
        "other": REPORTS,
        "both": REPORTS,
        "elsewhere": REPORTS,
        "silent": SILENT,
    }


NO_FAULT = "| none | no fault: the kernels as they are |"


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out.jsonl"
    head = {"machine": "NVIDIA H200, 580.1", "compute-sanitizer": "2025.3"}
    path.write_text("\n".join(map(json.dumps, [head, {"id": "control-gemm", "under": RESULTS, "outcome": RIGHT}])))
    monkeypatch.setattr(sys, "argv", ["faults_on_gpu", "--table", str(path)])
    assert faults_on_gpu.main() == 0
    output = capsys.readouterr().out
    assert "Run on NVIDIA H200, 580.1, compute-sanitizer 2025.3:" in output and f"{NO_FAULT} 1 |" in output
    page = tmp_path / "page.md"
    page.write_text((Path(__file__).parents[2] / "docs/notes/other_tools.md").read_text(encoding="utf-8"))
    monkeypatch.setattr(sys, "argv", ["faults_on_gpu", "--table", str(path), "--page", str(page)])
    assert faults_on_gpu.main() == faults_on_gpu.main() == 0
    assert page.read_text().count(f"{NO_FAULT} 1 |") == 1 and "# Other tools" in page.read_text()
    page.write_text("nothing")
    for words, message in (
        (["--table", str(tmp_path / "absent")], "No such file"),
        (["--table", str(path), "--page", str(page)], "lacks the lines"),
        (["--out", str(path), "--jobs", "0"], "at least 1, found 0"),
        ([], "required"),
    ):
        monkeypatch.setattr(sys, "argv", ["faults_on_gpu", *words])
        with pytest.raises(SystemExit) as stop:
            faults_on_gpu.main()
        assert stop.value.code == 2 and message in capsys.readouterr().err
