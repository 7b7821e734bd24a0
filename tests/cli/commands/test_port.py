"""`cuir port` as a user runs it: the card's expert kernel, a rewritten program, a model; and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cuir.syntax.parser import parse
from llm.limited_processes import LimitedProcesses
from tests.cli.programs import TWICE, TWICE_SPEC
from tests.llm.endpoint import KEY, Say, endpoint

SMALL = ("--head-dim", "64")
LATE = (
    TWICE.replace("sm_80", "sm_90a")
    .replace("sX = shared", "bar = mbarrier()\n    sX = shared")
    .replace("sX)\n            copy_commit()\n", "sX, bar)\n")
)
WAITS = "            copy_commit()\n            copy_wait(0)\n"
STORED = TWICE.replace("copy_async(X[t * BM : t * BM + BM, :], sX)", "store(sX, load(X[t * BM : t * BM + BM, :]))").replace(WAITS, "")
RIGHT = "```cuir\n" + STORED.replace("sm_80", "sm_75") + "```"


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CUIR_MODEL", raising=False)
    Path("twice.cuir").write_text(TWICE)
    Path("late.cuir").write_text(LATE)
    Path("twice.py").write_text(TWICE_SPEC)


@pytest.mark.usefixtures("few_problems")
def test_an_expert_kernel_becomes_that_of_the_card(cuir: Callable) -> None:
    output = cuir("port", "flash_fwd_sm90", "--to", "sm_75", "--spec", "softcap_causal", *SMALL, "--json")
    data = output.json
    assert output.code == 0 and data["ok"] and (data["how"], data["arch"]) == ("expert", "sm_75")
    assert data["notes"] == ["`flash_fwd_sm75` is the expert kernel of sm_75"]
    program = parse(Path("out/flash_fwd_sm_75/softcap_causal.cuir").read_text())
    assert program.kernels()["flash_fwd"].arch == "sm_75" and "tanh" in Path("out/flash_fwd_sm_75/softcap_causal.cuir").read_text()


@pytest.mark.usefixtures("few_problems")
def test_a_program_of_the_user_is_rewritten(cuir: Callable) -> None:
    output = cuir("port", "twice.cuir", "--to", "sm_75", "--spec", "twice.py", "-o", "ported")
    assert output.code == 0, output.err
    assert "note: copies at 1 place go through registers: they overlap nothing" in output.out
    text = Path("ported/twice.cuir").read_text()
    assert 'arch="sm_75"' in text and "copy_async" not in text and Path("ported/twice.diff").is_file()


@pytest.mark.usefixtures("few_problems")
def test_a_card_that_runs_the_code_of_another(cuir: Callable) -> None:
    output = cuir("port", "twice.cuir", "--to", "sm_120", "--spec", "twice.py", "--json")
    assert output.code == 0 and output.json["arch"] == "sm_89" and output.json["notes"] == ["sm_120 runs the code of sm_89"]


def test_a_wrong_program_is_named_so(cuir: Callable) -> None:
    Path("twice.py").write_text(TWICE_SPEC.replace("x + x", "x * 3"))
    output = cuir("port", "twice.cuir", "--to", "sm_75", "--spec", "twice.py", "--json")
    assert output.code == 1 and not output.json["ok"] and output.json["diagnostics"]
    folder = Path("out/twice_sm_75")
    assert (folder / "twice.wrong.cuir").is_file() and not (folder / "twice.cuir").exists()


@pytest.mark.parametrize(
    ("argv", "code", "parts"),
    [
        (("twice.cuir", "--to", "sm_75"), 2, ("U130", "--spec")),
        (("twice.cuir", "--to", "hopper", "--spec", "twice.py"), 2, ("U100", "sm_75, sm_80")),
        (("twice.cuir", "--to", "sm_70", "--spec", "twice.py"), 2, ("U100", "sm_70")),
        (("twice.cuir", "--to", "sm_86", "--spec", "twice.py"), 2, ("U100", "which sm_86 runs")),
        (("flash_fwd_sm80", "--to", "sm_75", "--dtype", "bf16"), 2, ("U109", "sm_75 multiplies f16", "--dtype f16")),
        (("twice.cuir", "--to", "sm_75", "--spec", "twice.py", "-c", "BM=1024"), 1, ("M301", "-c BM=512")),
        (("late.cuir", "--to", "sm_75", "--spec", "twice.py"), 2, ("S217", "late.cuir:8", "^", "U601", "--model")),
        (("flash_fwd_sm90", "--to", "sm_80", "--spec", "gated_attention"), 2, ("X120", "U601")),
    ],
)
def test_refusals(cuir: Callable, argv: tuple[str, ...], code: int, parts: tuple[str, ...]) -> None:
    output = cuir("port", *argv)
    assert output.code == code and all(part in output.err for part in parts), output.err
    output = cuir("port", *argv, "--json")
    assert output.code == code and not output.json["ok"] and output.json["diagnostics"][0]["code"] == parts[0]
    assert not list(Path().glob("out/*/*.cuir"))


class InProcess(LimitedProcesses):
    """Judges in this process."""

    def __call__(self, function: Callable[..., Any], *arguments: Any, seconds: float) -> Any:
        return function(*arguments)


@pytest.mark.usefixtures("few_problems")
def test_by_a_model_then_replayed(cuir: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm.limited_processes.LimitedProcesses", InProcess)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    command = ("port", "late.cuir", "--to", "sm_75", "--spec", "twice.py", "--json")
    with endpoint(Say(f"```cuir\n{LATE}```"), Say(RIGHT)) as server:
        monkeypatch.setenv("OPENAI_API_BASE", server.address)
        output = cuir(*command, "--model", "openai/scripted", "--record", "t.jsonl")
    assert output.code == 0 and output.json["how"] == "model", output.out
    assert [a["stage"] for a in output.json["attempts"]] == ["check", "passed"], "an answer for the old card is refused"
    prompt = server.requests[0]["messages"][1]["content"]
    assert (
        "The origin was written for sm_90a" in prompt
        and "Instead, sm_75 has x = load(box), later store(shared, x)" in prompt
        and "S217" in prompt
    )
    assert parse(Path("out/twice_sm_75/twice.cuir").read_text()).kernels()["twice"].arch == "sm_75"
    monkeypatch.delenv("OPENAI_API_BASE")
    output = cuir(*command, "--replay", "t.jsonl")
    assert output.code == 0 and output.json["requests_that_drifted"] == 0
