"""`cuir transfer` as a user runs it: by rules, by a model at an endpoint on loopback through the real litellm client, replayed; and what it says when it cannot."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import corpus
from cuir.attn.splicing.splice import transfer
from cuir.bridging import BridgeReport, Step
from cuir.cli import run as run_command
from cuir.syntax.parser import parse
from llm.limited_processes import LimitedProcesses
from tests.llm.endpoint import KEY, Say, endpoint
from tests.pages.html_text import assert_well_formed

ORIGIN = "flash_fwd"
RIGHT = "```cuir\n@func\ndef keep(b, h, q, k):\n    return True\n\n@func\ndef kv_count(b, h, m):\n    return cdiv(N, BN) - N // BN, cdiv(N, BN)\n```"
HALF = "```cuir\n@func\ndef keep(b, h, q, k):\n    return True\n```"  # blocks stay those of the causal mask
SMALL = ("--head-dim", "64", "-c", "BM=64", "-c", "BN=64")
OPTIONS = (*SMALL, "--attempts", "3")


@pytest.fixture
def cuir(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[int, str, str]]:
    """One command line in a folder of its own: exit code, stdout, stderr. Nothing it prints may be a stack trace, or hold the key."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)

    def call(*argv: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run_command(list(argv))
        output = capsys.readouterr()
        assert "Traceback" not in output.out + output.err and KEY not in output.out + output.err and code != 70, output.err
        return code, output.out, output.err

    return call


@pytest.mark.usefixtures("few_problems")
def test_by_rules(cuir: Any) -> None:
    code, out, _ = cuir("transfer", ORIGIN, "--to", "softcap_causal", *SMALL, "--json")
    data = json.loads(out)
    assert code == 0 and data["ok"] and data["how"] == "rules"
    expected = transfer(parse(corpus.programs()[ORIGIN].read_text(encoding="utf-8")), corpus.variant("softcap_causal")()).text
    assert Path("out/softcap_causal/softcap_causal.cuir").read_text() == expected


def test_steps_that_no_transfer_has_are_not_told(cuir: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def bridge(*of: Any, progress: Any, **options: Any) -> BridgeReport:
        for step in (Step("lower", "done", "lines of CUDA"), Step("compile", "skipped", "not asked for")):
            progress(step)
        return BridgeReport("softcap_causal", steps=[Step("lower", "done")])

    monkeypatch.setattr(importlib.import_module("cuir.bridging"), "bridge", bridge)
    code, _, err = cuir("transfer", ORIGIN, "--to", "softcap_causal", *SMALL)
    assert code == 0 and "lines of CUDA" in err and "compile" not in err


class InProcess(LimitedProcesses):
    """Judges in this process, the same answer once: other processes have their own tests, and a verdict depends on nothing but the answer and the task."""

    def __init__(self, result: dict[str, Any]) -> None:
        super().__init__()
        self.result = result

    def __call__(self, function: Callable[..., Any], *arguments: Any, seconds: float) -> Any:
        job, text, _ = arguments
        key = repr((job.origin, sorted(job.consts.items(), key=str), job.load.args, text))
        if key not in self.result:
            self.result[key] = function(*arguments)
        return self.result[key]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, verdicts: dict[str, Any]) -> None:
    monkeypatch.setattr("llm.limited_processes.LimitedProcesses", lambda: InProcess(verdicts))


@pytest.fixture(scope="module")
def verdicts() -> dict[str, Any]:
    return {}


@pytest.mark.thorough
@pytest.mark.usefixtures("here")
def test_by_a_model_then_replayed(cuir: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with endpoint(Say("Sorry."), Say(HALF), Say(RIGHT)) as server:
        monkeypatch.setenv("OPENAI_API_BASE", server.address)
        code, out, err = cuir(
            "transfer",
            ORIGIN,
            "--to",
            "full",
            "--model",
            "openai/scripted",
            "--record",
            "t.jsonl",
            "--out",
            "done",
            *OPTIONS,
        )
    assert code == 0, out + err
    assert "attempt 1: answer: A001" in err and "attempt 2: contracts: V101" in err and "attempt 3: passed" in err
    assert "attempt 3 of sample 0 passed" in out and "3,600 tokens" in out and "verification" in out
    program = parse(Path("done/full.cuir").read_text())
    assert program.funcs()["keep"] == parse(RIGHT[8:-3]).funcs()["keep"] and Path("done/full.diff").is_file()
    requests = server.requests
    assert "`causal` (" in requests[0]["messages"][1]["content"], "what programs of the corpus compute is known without --from"
    assert [len(r["messages"]) for r in requests] == [2, 4, 4] and "V101" in requests[2]["messages"][3]["content"]
    assert KEY not in Path("t.jsonl").read_text() and len(Path("t.jsonl").read_text().splitlines()) > 6
    monkeypatch.delenv("OPENAI_API_BASE")
    monkeypatch.delenv("OPENAI_API_KEY")
    code, out, _ = cuir("transfer", ORIGIN, "--to", "full", "--replay", "t.jsonl", "--json", *OPTIONS)
    data = json.loads(out)
    assert code == 0 and data["ok"] and data["model"] == "openai/scripted" and data["requests_that_drifted"] == 0
    assert [a["stage"] for a in data["attempts"]] == ["answer", "contracts", "passed"] and data["spent"]["tokens"] == 0


def test_when_nobody_can_be_asked(cuir: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    code, _, err = cuir("transfer", ORIGIN, "--to", "gated_attention")
    assert code == 2 and "without a model this transfer cannot be done" in err and "U601" in err and "CUIR_MODEL" in err
    monkeypatch.setenv("CUIR_MODEL", "openai/scripted")
    with endpoint(Say(f"Incorrect API key provided: {KEY}", 401)) as server:
        monkeypatch.setenv("OPENAI_API_BASE", server.address)
        code, _, err = cuir("transfer", ORIGIN, "--to", "gated_attention", "--head-dim", "64")
    assert code == 2 and "U603" in err
    code, _, err = cuir("transfer", ORIGIN, "--to", "causal", "--replay", "none.jsonl")
    assert code == 2 and "U606" in err
    code, _, err = cuir("transfer", ORIGIN, "--to", "causal", "--replay", "none.jsonl", "--model", "x/y")
    assert code == 2 and "U100" in err
    code, _, err = cuir("transfer", ORIGIN, "--to", "gated_attention", "--budget", "0")
    assert code == 2 and "U100" in err and "more than 0" in err
    code, _, err = cuir("transfer", ORIGIN, "--to", "nonsense")
    assert code == 2 and "U102" in err


@pytest.mark.usefixtures("here")
def test_a_wrong_program_is_told_and_kept_apart(cuir: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with endpoint(Say(HALF)) as server:
        monkeypatch.setenv("OPENAI_API_BASE", server.address)
        code, out, err = cuir(
            "transfer",
            ORIGIN,
            "--to",
            "full",
            "--model",
            "openai/scripted",
            *SMALL,
            "--attempts",
            "2",
            "--tokens",
            "1000",
            "--html",
            "page.html",
        )
    assert code == 1 and "V101" in err and "the tokens are spent" in out and len(server.requests) == 1
    assert Path("out/full/full.wrong.cuir").is_file() and not Path("out/full/full.cuir").exists()
    page = Path("page.html").read_text(encoding="utf-8")
    assert page.count('class="exchange"') == 1 and "V101" in page and "<h2>Beside the origin</h2>" in page and KEY not in page
    assert "Workers over time" not in page, "a wrong program is not run"
    assert_well_formed(page)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("torch.where(s.abs() < 10, s, torch.nan).softmax(-1) @ v * 0 + torch.where(s.abs().amax() < 10, 0.0, torch.nan)", "X106"),
        ("s.softmax(-1) @ v * torch.nan", "X106"),
        ("torch.nn.functional.dropout(s.softmax(-1), 0.1) @ v", "X118"),
        ("exit(0)", "X119"),
        ("s.softmax(-1) @ v if q.shape[2] < 100 else [][1]", "X113"),
    ],
)
def test_a_target_that_nobody_can_meet_is_refused_before_a_model_is_asked(
    cuir: Any, monkeypatch: pytest.MonkeyPatch, body: str, code: str
) -> None:
    text = f"import torch\n\ndef reference(q, k, v, scale):\n    g = q.shape[1] // k.shape[1]\n    k, v = (x.repeat_interleave(g, 1) for x in (k, v))\n    s = q @ k.mT * scale\n    return {{'O': {body}}}\n"
    Path("mine.py").write_text(text)
    with endpoint(Say("nothing")) as server:
        monkeypatch.setenv("OPENAI_API_BASE", server.address)
        ended, out, _ = cuir("transfer", ORIGIN, "--to", "mine.py", "--model", "openai/any", *OPTIONS, "--json")
        assert ended == 2 and json.loads(out)["diagnostics"][0]["code"] == code
        assert not server.requests


def test_a_target_that_can_be_met_is_not_refused() -> None:
    from cuir.checking.const_defaults import fill_consts
    from cuir.spec.function_specification import FunctionSpecification
    from llm.passes.tuning_target import require_usable_target

    program = parse(corpus.programs()[ORIGIN].read_text(encoding="utf-8"))
    kernel = next(iter(program.kernels()))

    def reference(q: Any, k: Any, v: Any, scale: float) -> Any:
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
        return (q @ k.mT * scale).softmax(-1) @ v

    def compute(q: Any, extra: Any) -> Any:  # of a kernel with more parameters
        return q

    consts = fill_consts(program.kernels()[kernel], {"D": 64, "BM": 64, "BN": 64})
    for target in (
        FunctionSpecification("mine", lambda q, k, v, scale: {"O": reference(q, k, v, scale)}),
        FunctionSpecification("other", compute),
    ):
        require_usable_target(program, kernel, target, consts, "quick")
