"""`cuir lift` with an endpoint that says programs of the corpus and faults in them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cuir.cli import run as run_command
from llm.limited_processes import LimitedProcesses
from tests.llm.endpoint import KEY, Say, endpoint
from tests.llm.test_lift import COMPUTE, LOAD, SM90, TWICE, fence, first


class InProcess(LimitedProcesses):
    """Judges in this process: a second one takes seconds to start, and has its own tests."""

    def __call__(self, function: Callable[..., Any], *arguments: Any, seconds: float) -> Any:
        return function(*arguments)


def run_lift(tmp_path: Path, *arguments: str) -> int:
    return run_command(["lift", SM90, "--head-dim", "64", "--out", str(tmp_path / "out"), *arguments])


@pytest.mark.thorough("a whole lift, twice; its parts have tests in tests/llm")
def test_lift_through_a_model_with_repairs_is_recorded_and_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A source of two roles that is no attention: the first role, the whole with a fault in its orchestration, right."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr("llm.limited_processes.LimitedProcesses", InProcess)
    source, spec, record = tmp_path / "twice.cu", tmp_path / "spec.py", tmp_path / "lift.jsonl"
    source.write_text(TWICE, encoding="utf-8")
    spec.write_text("def reference(X):\n    return X + X\n", encoding="utf-8")
    command = ["lift", str(source), "--spec", str(spec), "--head-dim", "64", "--out", str(tmp_path / "out"), "--json"]
    whole = LOAD + COMPUTE
    miscounted = whole.replace("mbarrier(4", "mbarrier(1").replace("warps=4", "warps=1")
    with endpoint(*(Say(fence(text)) for text in (LOAD, miscounted, whole))) as state:
        monkeypatch.setenv("OPENAI_API_BASE", state.address)
        assert run_command([*command, "--model", "openai/test", "--record", str(record)]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["ok"] and [[a["stage"] for a in step["attempts"]] for step in data["steps"]] == [
        ["passed"],
        ["orchestration", "passed"],
    ]
    assert "must count 4 workers" in json.dumps(state.requests[2]) and KEY not in record.read_text(encoding="utf-8")
    names = {"twice.cuir", "twice.step1.cuir", "twice.annotated.cu", "verification.json", "orchestration.json"}
    assert names <= set(data["files"]) and "skipped" in data["beside_source"]
    monkeypatch.delenv("OPENAI_API_BASE")
    assert run_command([*command, "--replay", str(record)]) == 0
    repeated = json.loads(capsys.readouterr().out)
    assert repeated["ok"] and repeated["requests_that_drifted"] == 0 and repeated["spent"]["tokens"] == 0


@pytest.mark.thorough
def test_a_lift_that_is_not_accepted_ends_with_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("llm.limited_processes.LimitedProcesses", InProcess)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with endpoint(Say(fence(first().replace("registers=24", "registers=32")))) as state:
        monkeypatch.setenv("OPENAI_API_BASE", state.address)
        assert run_lift(tmp_path, "--model", "openai/test", "--attempts", "1") == 1
    output = capsys.readouterr()
    assert "O110" in output.out + output.err and (tmp_path / "out" / "flash_fwd_sm90.wrong.cuir").is_file()


def test_explain_needs_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_lift(tmp_path, "--explain", "--json") == 0
    data = json.loads(capsys.readouterr().out)
    assert "role compute: warpgroups=2, registers=240; bulk store, wgmma" in data["orchestration"]
    assert "// CuIR: bar.arrive() [k_empty]" in (tmp_path / "out" / "flash_fwd_sm90.annotated.cu").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("nothing",), "U101"),
        (("nothing.cu",), "U201"),
        ((SM90, "--read", "text"), "U601"),
        (("README.md",), "O122"),
        ((SM90, "-D", "HEAD DIM=1"), "U103"),
        ((SM90, "--spec", "nothing"), "U102"),
    ],
)
def test_bad_calls_are_said(arguments: tuple[str, ...], code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["lift", *arguments, "--out", str(tmp_path / "out")]) == 2
    assert code in capsys.readouterr().err
