"""judge: exit codes, the report for people, and the JSON object."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.judged.cases import FOLDER
from cuir.cli.commands.judge import print_judgement
from cuir.judge.judging import Fault, Judgement
from cuir.text.diagnostics import Diagnostic
from tests.cli.conftest import CapturedOutput

Command = Callable[..., CapturedOutput]


def test_files_that_are_not_there_are_named(cuir: Command, tmp_path: Path) -> None:
    output = cuir("judge", FOLDER / "add.py", tmp_path / "none.cu")
    assert output.code == 2 and "error[U201]" in output.err
    output = cuir("judge", tmp_path / "none.py", FOLDER / "add.cu")
    assert output.code == 2 and "error[X111]" in output.err


@pytest.mark.nvcc
def test_a_solution_that_cannot_run_is_not_judged(cuir: Command, tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text("import a_module_that_nobody_has\n", encoding="utf-8")
    output = cuir("judge", FOLDER / "add.py", tmp_path / "s.py", "--json")
    assert output.code == 2 and output.json["verdict"] == "not judged" and not output.json["ok"]


def test_a_verdict_is_printed_with_its_faults_and_what_was_not_judged(capsys: pytest.CaptureFixture[str]) -> None:
    found = Judgement(tried={"small sizes (n=32)": 3}, not_judged=["speed"], launches=3)
    found.faults.append(Fault("unwritten", "nothing has written 7 of 32 elements", "small sizes (n=32)"))
    found.warnings = (Diagnostic("M416", "a store may read behind the end", None, severity="warning"),)
    print_judgement(found, "mine.cu", False, None)
    streams = capsys.readouterr()
    assert "warning[M416]: a store may read behind the end" in streams.err
    print_judgement(found, "mine.cu", True, None)
    assert [d["code"] for d in json.loads(capsys.readouterr().out)["warnings"]] == ["M416"]
    printed = streams.out
    assert printed.startswith("wrong  mine.cu\n    elements of the output that nothing wrote: nothing has written 7 of 32 elements")
    assert "tried       small sizes (n=32): 3 calls" in printed and "not judged  speed" in printed
    assert (found.verdict, Judgement(tried={"x": 1}, refused=["y"]).verdict, Judgement().verdict) == ("wrong", "limited", "not judged")
