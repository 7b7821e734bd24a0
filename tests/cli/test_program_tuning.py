"""`cuir tune --model` from the command line, with recorded lines that a script wrote, and a GPU that is a formula. No model is behind any of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import corpus
from cuir import parse
from cuir.attn.splicing.splice import transfer
from cuir.performance.search.compiling import BuildResult
from cuir.performance.search.settings_contest import with_defaults
from cuir.performance.search.tuning_records import Journal, Key
from cuir.performance.timing.problem import Shape
from cuir.syntax.printer import show
from cuir.syntax.types import F16
from llm.loop import Attempt, Verdict
from llm.messages import Answer, Message
from llm.passes import tune as tune_pass
from llm.transcript import Recorder
from tests.llm.test_tune import EARLY_TILE, STAGES, run_here

CALL = (
    "tune",
    "causal",
    "--origin",
    "flash_fwd",
    "--space",
    "space.json",
    "--shape",
    "1,4,4,512,512,64",
    "-c",
    "BM=64,BN=32",
    "--out",
    "out",
)


class InProcess:
    """In place of the process of its own: this one."""

    def __enter__(self) -> Callable[..., Any]:
        return run_here

    def __exit__(self, *_: object) -> None:
        pass


class Worker:
    """In place of a process with a GPU: three stages are faster, another order of tiles slower."""

    def __init__(self, command: Sequence[str]):
        pass

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        assert request["origin"] == "flash_fwd" and request["variant"] == "causal" and request["text"].startswith("# Attention forward")
        if request["do"] == "check":
            return {"status": "right", "why": ""}
        return {"milliseconds": 2.0 - 0.5 * (request["consts"]["STAGES"] == 3) + 0.25 * ("cdiv(M, BM) - 1" not in request["text"])}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder with a space; proofs find nothing, kernels compile at once, and there is a GPU."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CUIR_MODEL", raising=False)
    monkeypatch.setattr("llm.limited_processes.LimitedProcesses", InProcess)
    monkeypatch.setattr("cuir.performance.timing.worker.Worker", Worker)
    monkeypatch.setattr("cuir.performance.timing.gpu.explain_missing_gpu", lambda *_: "")
    monkeypatch.setattr("cuir.performance.search.tuning_records.device", lambda: ("a formula", 1))
    monkeypatch.setattr("cuir.cli.program_tuning._compiler", lambda jobs, optional: lambda *of: BuildResult(registers=168))
    monkeypatch.setattr(tune_pass, "verify", lambda *of, **options: type("Report", (), {"stages": []})())
    (tmp_path / "space.json").write_text('{"axes": [{"STAGES": [2, 3]}], "starts": [{"STAGES": 2}]}', encoding="utf-8")
    return tmp_path


def write_transcript(path: Path, *answers: str) -> Path:
    """A transcript of scripted answers: what was asked does not matter to a replay that is not exact."""
    recorder = Recorder(path, {"pass": "tune"}, "a script")
    for number, text in enumerate(answers, 1):
        answer = Answer(text, 100, 10, 0.5, 1.0, False, "stop", "a script")
        recorder.exchange(Attempt(0, number, (Message("user", "asked"),), answer, Verdict(False, "answer")))
    return path


def test_faster_programs_are_kept(cuir: Callable, bench: Path) -> None:
    path = write_transcript(bench / "t.jsonl", EARLY_TILE, STAGES, "nothing more", "really")
    output = cuir(*CALL, "--replay", path, "--attempts", "2", "--json")
    assert output.code == 0 and not output.err
    result = output.json
    assert result["faster"] and result["speedup"] == pytest.approx(2.0 / 1.5, abs=1e-4) and result["model"] == "a script"
    assert [e["status"] for e in result["entries"]] == ["slower", "faster"] and result["entries"][1]["registers"] == 168
    written = Path(result["files"]["tuned.cuir"]).read_text(encoding="utf-8")
    assert "STAGES: const = 3" in written and written.startswith("# Verified against causal for T=f16,D=64,BM=64,BN=32,STAGES=3;")
    assert [len(r["attempts"]) for r in result["rounds"]] == [2, 2]


def test_settings_that_were_timed_are_in_the_request(cuir: Callable, bench: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of a journal that agree with `-c`."""
    monkeypatch.setenv("CUIR_CACHE", str(bench / "cache"))
    variant = transfer(parse(corpus.programs()["flash_fwd"].read_text(encoding="utf-8")), corpus.variant("causal")())
    journal = Journal.of(Key.of("a formula", variant.program, "f16", at := Shape(1, 4, 4, 512, 512, 64)), at)
    for block, stages in ((32, 2), (32, 3), (64, 3)):
        journal.write({"T": F16, "D": 64, "BM": 64, "BN": block, "STAGES": stages}, {"status": "timed", "why": "", "milliseconds": [1.5]})
    recorded = bench / "r.jsonl"
    cuir(*CALL, "--replay", write_transcript(bench / "t.jsonl", STAGES), "--record", recorded, "--attempts", "1")
    requests = recorded.read_text(encoding="utf-8")
    assert "has timed 2 settings" in requests and "* STAGES=3: 1.5000 ms" in requests and "BN=64" not in requests


def test_a_limit_of_time_ends_it(cuir: Callable, bench: Path) -> None:
    output = cuir(*CALL, "--replay", write_transcript(bench / "t.jsonl", EARLY_TILE), "--limit", "0", "--json")
    assert output.code == 1 and not output.json["entries"] and "the time is over" in output.json["why"]


def test_what_people_see(cuir: Callable, bench: Path) -> None:
    output = cuir(*CALL, "--replay", write_transcript(bench / "t.jsonl", STAGES, "nothing more"), "--attempts", "1")
    assert output.code == 0 and "1.333 x the start" in output.out and "1: faster" in output.out and "STAGES=3" in output.out
    assert "A001" in output.out, "an answer that was refused is listed"
    assert "asking" not in output.err and "attempt 1: " in output.err and "tokens" in output.err


def test_a_proposal_from_a_file_and_no_model(cuir: Callable, bench: Path) -> None:
    for name, answer in (("slow", EARLY_TILE), ("fast", STAGES)):
        (bench / f"{name}.cuir").write_text(answer.split("```cuir\n")[1].split("```")[0], encoding="utf-8")
    (bench / "wrong.cuir").write_text(STAGES.split("```cuir\n")[1].split("```")[0].replace("flash_fwd", "other"), encoding="utf-8")
    words = [word for name in ("slow", "fast", "wrong") for word in ("--proposal", f"{name}.cuir")]
    result = cuir(*CALL, *words, "--json").json
    assert result["ok"] and [e["status"] for e in result["entries"]] == ["slower", "faster"] and result["model"] is None
    assert [p["stage"] for p in result["proposals"]] == ["speed", "passed", "check"]
    output = cuir(*CALL, "--proposal", "wrong.cuir")
    assert output.code == 1 and "V501" in output.err and "wrong.cuir is refused (check)" in output.err


def test_a_proposal_is_told_by_its_file(cuir: Callable, bench: Path) -> None:
    """Places are those of the file, also where the definitions are merged into the whole program; a program that changes nothing is said to."""
    text = STAGES.split("```cuir\n")[1].split("```")[0]
    text = f"# a line of my own\n\n\n{text.replace('v_empty[u].arrive()', 'v_emty[u].arrive()')}"
    (bench / "wrong.cuir").write_text(text, encoding="utf-8")
    line, written = next((n, item) for n, item in enumerate(text.splitlines(), 1) if "v_emty" in item)
    output = cuir(*CALL, "--proposal", "wrong.cuir")
    assert output.code == 1 and "answer.cuir" not in output.err
    assert f"\nwrong.cuir:{line}:{written.index('v_emty') + 1}: error[N101]" in output.err
    (bench / "same.cuir").write_text(show_causal(), encoding="utf-8")
    same = cuir(*CALL, "--proposal", "same.cuir")
    assert same.code == 0 and "same.cuir is the same program as the start: not timed" in same.out


def show_causal() -> str:
    variant = transfer(parse(corpus.programs()["flash_fwd"].read_text(encoding="utf-8")), corpus.variant("causal")())
    return show(with_defaults(variant.program, variant.kernel, {"STAGES": 2, "T": F16, "D": 64, "BM": 64, "BN": 32}))


def test_without_a_gpu_nothing_is_kept_and_the_proposals_are_written(cuir: Callable, bench: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cuir.performance.timing.gpu.explain_missing_gpu", lambda *_: "no CUDA device")
    output = cuir(*CALL, "--replay", write_transcript(bench / "t.jsonl", STAGES))
    assert (
        output.code == 0
        and "not ranked" in output.out
        and "--proposal out/proposal-1.cuir" in output.out
        and "faster" not in output.out.split("not ranked")[0]
    )
    assert (bench / "out" / "proposal-1.cuir").exists() and not (bench / "out" / "tuned.cuir").exists()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--model", "m", "--replay", "t.jsonl"), "U100"),
        (("--replay", "missing.jsonl"), "U606"),
        (("--proposal", "missing.cuir"), "U201"),
        (("--replay", "t.jsonl", "--dry-run"), "U100"),
        (("--replay", "t.jsonl", "--shape", "1,4,4,64,64,64"), "U100"),
        (("--record", "r.jsonl"), "U100"),
    ],
)
def test_calls_that_are_wrong(cuir: Callable, bench: Path, words: tuple[str, ...], code: str) -> None:
    write_transcript(bench / "t.jsonl", STAGES)
    output = cuir(*[w for w in CALL if code != "U100" or "--record" not in words or w not in ("--out", "out")], *words, "--json")
    assert output.code == 2 and json.loads(output.out)["diagnostics"][0]["code"] == code
