"""`cuir eval` with scripted answers and scripted verdicts: what it takes, counts, shows and writes. No model is behind any of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from cuir.cli.commands.eval import _command
from cuir.text.diagnostics import Diagnostic
from llm.loop import Attempt, Verdict
from llm.messages import Answer, Message
from llm.passes.transfer import Transfer
from llm.transcript import Recorder, read_transcript


def judge(self: Transfer, text: str, finish: str = "stop") -> Verdict:
    """In place of proofs: an answer names its stage and a code."""
    stage, _, code = text.partition(" ")
    return Verdict(stage == "passed", stage, (Diagnostic(code, "wrong"),) if code else (), text=text)  # type: ignore[arg-type]


class Client:
    """In place of a provider: each model of a script has its answers by variant; a variant is known by its name in the request."""

    answers: ClassVar[dict[tuple[str, str], list[str]]] = {}
    requests = 0

    def __init__(self, model: str, temperature: float | None, timeout_s: float, cache: Path | None):
        self.model = model

    def ask(self, messages: Sequence[Message], sample: int) -> Answer:
        Client.requests += 1
        variant = next(v for v in ("sliding_window", "softcap_causal") if f"`{v}`" in messages[1].text)
        text = Client.answers[self.model, variant][sample * 3 : sample * 3 + 3][(len(messages) - 2) // 2]
        return Answer(text, 1000, 100, 0.25, 2.0, False, "stop", self.model)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CUIR_MODEL", raising=False)
    monkeypatch.setattr(Transfer, "judge", judge)
    monkeypatch.setattr("llm.client.Client", Client)
    monkeypatch.setattr("llm.client.library", lambda: None)
    monkeypatch.setattr("llm.scores.plot", lambda result, path: path.write_text("a plot"))
    monkeypatch.setattr("llm.passes.transfer.examples", lambda *of: "")
    Client.requests = 0
    Client.answers = {
        ("a/b", "sliding_window"): ["passed", "", "", "parse P001", "passed", ""],
        ("a/b", "softcap_causal"): ["mask V305", "numbers V301", "numbers V301", "check T111", "passed", ""],
        ("c", "sliding_window"): ["passed", "", "", "passed", "", ""],
        ("c", "softcap_causal"): ["schedules R401"] * 6,
    }
    return tmp_path


CALL = (
    "eval",
    "sliding_window",
    "softcap_causal",
    "--origin",
    "flash_fwd",
    "--model",
    "a/b",
    "--model",
    "c",
    "-k",
    "2",
    "--attempts",
    "3",
    "--out",
    "e.jsonl",
)


def test_models_beside_each_other(cuir: Callable, scripted: Path) -> None:
    output = cuir(*CALL, "--record", "t", "--json")
    assert output.code == 0 and not output.err
    item, second = output.json["scores"]
    assert (item["model"], item["right"], item["samples"], item["pass_at"]["1"], item["first_answer_pass_at"]["1"]) == (
        "a/b",
        3,
        4,
        0.75,
        0.25,
    )
    assert second["pass_at"]["1"] == 0.5 and second["reasons"] == {"schedule": 6} and second["pass_at"]["3"] is None
    assert item["usd"] == pytest.approx(0.25 * 8) and item["attempts"] == pytest.approx((1 + 2 + 3 + 2) / 4)
    assert sorted(p.name for p in Path("t").iterdir())[:2] == ["sliding_window-a_b-0.jsonl", "sliding_window-a_b-1.jsonl"]
    page = Path("e.md").read_text(encoding="utf-8")
    assert "| CuBridge, published | 0.70 | 0.85 | 1.00 |" in page and Path("e.svg").exists()


def test_a_second_call_asks_nothing_and_a_changed_one_is_refused(cuir: Callable, scripted: Path) -> None:
    cuir(*CALL)
    requests = Client.requests
    repeated = cuir(*CALL)
    assert repeated.code == 0 and Client.requests == requests and "CuBridge, published" in repeated.out
    assert cuir(*CALL, "--attempts", "2", "--json").json["diagnostics"][0]["code"] == "U131"
    assert cuir(*CALL, "--attempts", "2", "--fresh", "--json").json["scores"][0]["samples"] == 4
    more = cuir(*CALL[:-6], "-k", "1", "--attempts", "2", "--out", "e.jsonl", "--json")
    assert len(more.json["rows"]) == 8, "what a file holds stays in it"


@pytest.mark.usefixtures("terminal")
def test_people_see_samples_as_they_come(cuir: Callable, scripted: Path) -> None:
    output = cuir(*CALL)
    assert "sliding_window a/b #0: right at attempt 1" in output.err
    assert "softcap_causal c #1: failed  [schedules(R401) schedules(R401) schedules(R401)]" in output.err
    assert "schedule" in output.out and "1, 2" in output.out


def test_a_budget_cuts_it_short_and_the_same_command_goes_on(cuir: Callable, scripted: Path) -> None:
    output = cuir(*CALL, "--budget", "1.1", "--json")
    assert output.code == 0 and not output.json["complete"] and 0 < len(output.json["rows"]) < 8
    assert cuir(*CALL, "--json").json["complete"]


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_ctrl_c_ends_it_and_says_where_the_rows_are(cuir: Callable, scripted: Path, monkeypatch: pytest.MonkeyPatch, jobs: str) -> None:
    ask = Client.ask

    def interrupt(self: Client, messages: Sequence[Message], sample: int) -> Answer:
        if Client.requests == 3:
            raise KeyboardInterrupt
        return ask(self, messages, sample)

    monkeypatch.setattr(Client, "ask", interrupt)
    output = cuir(*CALL, "--jobs", jobs, "--fresh")
    assert output.code == 130 and output.err.endswith("\ninterrupted; the same command without --fresh goes on from e.jsonl\n")
    assert Client.requests <= 4, "what is under way asks no more"
    monkeypatch.setattr(Client, "ask", ask)
    assert cuir(*CALL, "--json").json["complete"]


def test_transcripts_give_the_same_figures_without_a_model(cuir: Callable, scripted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = cuir(*CALL, "--record", "t", "--json").json
    monkeypatch.delattr("llm.client.Client")
    repeated = cuir("eval", "--replay", "t", "--out", "r.jsonl", "--json").json
    assert repeated["complete"] and repeated["replayed"] and repeated["origin"] == "flash_fwd"
    assert repeated["consts"] == first["consts"] and repeated["consts"]["D"]

    def figures(scores: list[dict]) -> list[dict]:
        return sorted(({**s, "seconds": 0} for s in scores), key=lambda s: s["model"])

    assert figures(repeated["scores"]) == figures(first["scores"])
    assert all(s["seconds"] >= 2.0 * s["attempts"] * s["samples"] for s in repeated["scores"]), "what the model took then is in the time"
    few = cuir("eval", "sliding_window", "--replay", "t", "--out", "f.jsonl", "--json").json
    assert {r["variant"] for r in few["rows"]} == {"sliding_window from flash_fwd"}
    output = cuir("eval", "--show", "--out", "r.jsonl")
    assert output.code == 0 and "3 of 4" in output.out and "on record" not in output.out and "flash_fwd with " in output.out
    assert repeated["requests_that_drifted"] == 0 and repeated["drift"] is None


def test_requests_that_are_not_those_on_record_are_told(cuir: Callable, scripted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = cuir(*CALL, "--record", "t", "--json").json["rows"]
    feedback = Transfer.feedback
    monkeypatch.setattr(Transfer, "feedback", lambda *of: Message("user", feedback(*of).text + " Otherwise said."))
    output = cuir("eval", "--replay", "t", "--out", "r.jsonl")
    repairs = [len(r["attempts"]) - 1 for r in rows]
    count, samples = sum(repairs), sum(map(bool, repairs))
    message = f"{count} requests differ from those on record, in {samples} samples: prompts, reports or the language have changed since"
    assert f"note: {message}" in output.out and f"Note: {message}." in Path("r.md").read_text()
    for repeated in (("eval", "--replay", "t", "--out", "r.jsonl", "--json"), ("eval", "--show", "--out", "r.jsonl", "--json")):
        assert (result := cuir(*repeated).json)["drift"] == message and result["requests_that_drifted"] == count


def test_samples_that_ended_with_another_are_cut_short(cuir: Callable, scripted: Path) -> None:
    """Records of `cuir transfer -k 2 --record`; other files of a folder are left out."""
    cuir(*CALL, "--record", "t")
    task = read_transcript(next(Path("t").iterdir())).task
    recorder = Recorder(Path("s/both.jsonl"), {**task, "to": "sliding_window"}, "m")
    for sample, texts in enumerate((["mask V305"], ["parse P001", "passed"])):
        for number, text in enumerate(texts, 1):
            recorder.exchange(
                Attempt(
                    sample, number, (Message("user", "?"),), Answer(text, 1, 1, None, 0.0, False, "stop", "m"), Verdict(False, "answer")
                )
            )
    Recorder(Path("s/other.jsonl"), {"pass": "lift"}, "m")
    result = cuir("eval", "--replay", "s", "--out", "s.jsonl", "--json").json
    assert [(r["right_at"], "incomplete" in r) for r in result["rows"]] == [(None, True), (2, False)]
    assert result["scores"][0]["usd"] is None and result["scores"][0]["incomplete"] == 1 and result["scores"][0]["samples"] == 1


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("eval", "full"), "U601"),
        (("eval", "no_such_variant", "--model", "c"), "U102"),
        (("eval", "full", "--model", "c", "--origin", "nothing"), "U101"),
        (("eval", "full", "--model", "c", "--level", "half"), "U100"),
        (("eval", "--replay", "nowhere"), "U606"),
        (("eval", "--replay", "nowhere", "--model", "c"), "U100"),
        (("eval", "full", "--model", "c", "--budget", "0"), "U100"),
        (("eval", "full", "--model", "c", "--out", "results.md"), "U108"),
        (("eval", "full", "--model", "c", "--out", "notes.jsonl"), "U108"),  # the table would be written over notes.md
        (("eval", "full", "--model", "c", "--out", "."), "U108"),
        (("eval", "--replay", "nowhere", "--attempts", "3"), "U100"),
        (("eval", "--show"), "U100"),
        (("eval", "--show", "--out", "nothing.jsonl", "--fresh"), "U100"),
        (("eval", "--show", "--out", "nothing.jsonl"), "U131"),
    ],
)
def test_calls_that_are_wrong(cuir: Callable, scripted: Path, words: tuple[str, ...], code: str) -> None:
    (scripted / "notes.md").write_text("of mine")
    output = cuir(*words, "--json")
    assert output.code == 2 and json.loads(output.out)["diagnostics"][0]["code"] == code
    assert not Client.requests and (scripted / "notes.md").read_text() == "of mine"


@pytest.mark.parametrize("text", ["no JSON\n", '{"else": 1}\n', None])
def test_show_of_another_file_gives_no_advice_for_a_run(cuir: Callable, scripted: Path, text: str | None) -> None:
    path = scripted / "bad.jsonl"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    output = cuir("eval", "--show", "--out", path)
    assert (
        output.code == 2
        and "a file that `cuir eval --out` has written" in output.err
        and "--fresh" not in output.err
        and "Errno" not in output.err
    )


def test_a_plot_is_left_out_without_matplotlib(cuir: Callable, scripted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cuir import CuirError

    def raise_missing(*of: Any) -> None:
        raise CuirError.of("U120", "a plot needs matplotlib")

    monkeypatch.setattr("llm.scores.plot", raise_missing)
    output = cuir(*CALL)
    assert output.code == 0 and "left out: a plot needs matplotlib" in output.out


def test_the_command_on_record_names_no_place() -> None:
    words = [
        "eval",
        "combo",
        "-k",
        "5",
        "--record",
        "there/record",
        "--out=there/rows.jsonl",
        "--cache",
        "there",
        "--fresh",
        "--jobs",
        "20",
    ]
    assert _command(words) == "cuir eval combo -k 5 --jobs 20"
