"""The loop with scripted answers: repairs, what replaces what, samples side by side, budgets, faults of the provider, transcripts and their replay."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cuir.text.diagnostics import CuirError, Diagnostic
from llm.budget import Budget
from llm.loop import STAGES, Event, Outcome, Stage, Verdict, improve
from llm.messages import Answer, Message
from llm.transcript import Recorder, Replayed, read_transcript, versions

KEY = "sk-abcdefghijklmnop"


def answer(text: str, tokens: int = 100, cost: float | None = 0.01, cached: bool = False) -> Answer:
    return Answer(text, tokens - 10, 10, cost, 0.5, cached, "stop", "scripted")


@dataclass
class Scripted:
    """Answers by sample and attempt; a text is an answer, an exception is raised."""

    script: dict[int, list[str | Exception]]
    model: str = "scripted"
    requests: list[tuple[int, tuple[Message, ...]]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    pause_s: float = 0.0
    tokens: int = 100
    cost: float | None = 0.01

    def ask(self, messages: Sequence[Message], sample: int) -> Answer:
        with self.lock:
            number = sum(s == sample for s, _ in self.requests)
            self.requests.append((sample, tuple(messages)))
        time.sleep(self.pause_s * sample)
        message = self.script[sample][min(number, len(self.script[sample]) - 1)]
        if isinstance(message, Exception):
            raise message
        return answer(message, self.tokens, self.cost)


class Stages:
    """A pass whose answers name the stage that they reach: `numbers 2` fails there with two diagnostics."""

    name = "stages"

    def opening(self) -> list[Message]:
        return [Message("system", "rules"), Message("user", "task")]

    def judge(self, text: str, finish: str = "stop") -> Verdict:
        stage, _, count = text.partition(" ")
        assert stage in STAGES
        named: Stage = stage  # type: ignore[assignment]
        result = tuple(Diagnostic("V301", f"wrong {i} in {text}", hint="mend it") for i in range(int(count or 1)))
        return Verdict(named == "passed", named, () if named == "passed" else result, text=f"program {text}")

    def feedback(self, verdict: Verdict) -> Message:
        return Message("user", f"stage {verdict.stage}: {verdict.diagnostics[0].message}")


def lead(script: dict[int, list[str | Exception]], budget: Budget | None = None, **options: object) -> tuple[Outcome, Scripted]:
    asks = Scripted(script)
    return improve(Stages(), asks, budget or Budget(), len(script), **options), asks  # type: ignore[arg-type]


def test_the_first_answer_may_pass() -> None:
    outcome, asks = lead({0: ["passed"]})
    assert outcome.ok and outcome.verdict is not None and outcome.verdict.ok and len(asks.requests) == 1
    assert outcome.spent["tokens"] == 100 and outcome.spent["usd"] == 0.01


def test_a_repair_is_told_what_is_wrong() -> None:
    outcome, asks = lead({0: ["parse", "numbers", "passed"]})
    assert outcome.ok and outcome.why == "attempt 3 of sample 0 passed"
    first, second, third = (messages for _, messages in asks.requests)
    assert [m.role for m in first] == ["system", "user"] and second[:2] == first == third[:2]
    assert "program parse" in second[2].text and second[3].text == "stage parse: wrong 0 in parse"
    assert len(third) == 4 and "program numbers" in third[2].text, "only the latest that got further is shown"


def test_a_repair_that_falls_behind_is_dropped_and_told_about() -> None:
    _, asks = lead({0: ["numbers", "parse 2", "contracts", "passed"]})
    third, fourth = asks.requests[2][1], asks.requests[3][1]
    assert "program numbers" in third[2].text and "got less far (stage: parse)" in third[3].text and "wrong 1 in parse 2" in third[3].text
    assert "program numbers" in fourth[2].text and "stage: contracts" in fourth[3].text


def test_of_equals_the_last_is_kept() -> None:
    _, asks = lead({0: ["numbers 3", "numbers 4", "passed"]})
    assert "program numbers 4" in asks.requests[2][1][2].text


def test_attempts_end() -> None:
    outcome, asks = lead({0: ["mask", "check"]}, attempts=3)
    assert not outcome.ok and len(asks.requests) == 3 and outcome.verdict is not None and outcome.verdict.stage == "mask"
    assert "3 attempts" in outcome.why


def test_a_right_program_stays_when_it_does_not_get_faster() -> None:
    outcome, asks = lead({0: ["speed", "numbers", "speed", "parse"]}, attempts=4)
    assert (
        outcome.ok
        and outcome.verdict is not None
        and outcome.verdict.stage == "speed"
        and not outcome.verdict.ok
        and len(asks.requests) == 4
    )
    assert "slower than it could be" in outcome.why


@pytest.mark.parametrize(
    ("budget", "requests", "word"),
    [
        (Budget(tokens=250), 3, "tokens"),
        (Budget(usd=0.02), 2, "money"),
        (Budget(attempts=2), 2, "requests"),
        (Budget(seconds=0), 0, "time"),
    ],
)
def test_budgets_end_it(budget: Budget, requests: int, word: str) -> None:
    outcome, asks = lead({0: ["numbers"]}, budget, attempts=9)
    assert not outcome.ok and len(asks.requests) == requests and word in outcome.why


def test_samples_share_a_budget_and_the_first_that_passes_ends_the_others() -> None:
    script: dict[int, list[str | Exception]] = {0: ["check"], 1: ["numbers", "passed"], 2: ["parse"]}
    asks = Scripted(script, pause_s=0.05)
    outcome = improve(Stages(), asks, Budget(), 3, attempts=50)
    assert outcome.ok and "of sample 1" in outcome.why and len(asks.requests) < 100
    assert {s.why for s in outcome.samples} >= {"another sample passed", "passed"}


def test_a_failing_provider_fails_the_sample_and_not_the_others() -> None:
    down = CuirError.of("U604", "the provider is down")
    outcome, _ = lead({0: [down], 1: ["passed"]})
    assert outcome.ok and outcome.samples[0].why == "the provider is down"
    with pytest.raises(CuirError, match="U604"):
        lead({0: [down], 1: [down]})
    outcome, _ = lead({0: ["numbers", down]})
    assert not outcome.ok and outcome.verdict is not None and outcome.why == "the provider is down"


def test_progress_is_told_in_order() -> None:
    events: list[Event] = []
    lead({0: ["parse", "passed"]}, progress=events.append)
    assert [e.kind for e in events] == ["asking", "judging", "judged", "asking", "judging", "judged", "over"]
    assert events[2].verdict is not None and events[2].verdict.stage == "parse" and events[-1].why == "passed"


def test_what_is_cached_costs_nothing_and_what_has_no_price_is_told() -> None:
    budget = Budget(usd=1.0)
    for item in (answer("x", cached=True), answer("x", cost=None), answer("x", cost=0.25)):
        budget.spend(item)
    assert (budget.requests, budget.spent_tokens, budget.unpriced) == (3, 200, 1)
    assert budget.summary().startswith("2 requests, 200 tokens, at least $0.2500, 1 answer replayed (100 tokens on record), ")
    budget = Budget()
    for _ in range(2):
        budget.spend(answer("x", tokens=6000, cached=True))
    assert budget.summary() == "2 answers replayed (12,000 tokens on record), 0 s" and budget.as_json()["replayed_tokens"] == 12000
    assert Budget().summary() == "0 requests, 0 tokens, $0.0000, 0 s"


def test_a_transcript_replays(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    script: dict[int, list[str | Exception]] = {0: ["parse", "numbers", "check"], 1: ["mask", "numbers"]}
    first = improve(Stages(), Scripted(script), Budget(), 2, attempts=3, recorder=Recorder(path, {"pass": "stages"}, "scripted"))
    read = read_transcript(path)
    assert (read.model, read.task, len(read.exchanges)) == ("scripted", {"pass": "stages"}, 6)
    assert read.versions == versions() and read.outcome is not None and not read.outcome["ok"]
    repeated = Replayed(path, exact=True)
    second = improve(Stages(), repeated, Budget(), 2, attempts=3)
    stages = [[a.verdict.stage for a in s.attempts] for s in first.samples]
    assert [[a.verdict.stage for a in s.attempts] for s in second.samples] == stages and second.spent["tokens"] == 0
    texts = [line for line in path.read_text().splitlines() if json.loads(line)["kind"] == "message"]
    assert len(texts) == len(set(texts)) and sum('"task"' in t for t in texts) == 1, "messages that all begin with are written once"


def test_a_request_that_is_not_on_record(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    improve(Stages(), Scripted({0: ["parse", "passed"]}), Budget(), recorder=Recorder(path, {}, "scripted"))
    changed = [Message("system", "rules"), Message("user", "another task")]
    with pytest.raises(CuirError, match=r"U607.*not on record: message 2 \(user\) differs from character 0") as error:
        Replayed(path, exact=True).ask(changed, 0)
    assert error.value.diagnostics[0].hint
    loose = Replayed(path)
    assert loose.ask(changed, 0).text == "parse" and loose.drifted == 1
    with pytest.raises(CuirError, match="U607"):
        loose.ask(changed, 1)
    loose.ask(changed, 0)
    with pytest.raises(CuirError, match="holds 2 of this sample"):
        loose.ask(changed, 0)


def test_a_replay_of_another_task_says_which(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    task = {
        "pass": "transfer",
        "origin": "flash_fwd",
        "to": "full",
        "from": None,
        "parameters": [],
        "consts": {"T": "f16", "D": 128},
        "attempts": 5,
    }
    improve(Stages(), Scripted({0: ["parse", "passed"]}), Budget(), recorder=Recorder(path, task, "scripted"))
    second = {**task, "to": "sigmoid", "consts": {"D": 64, "T": "f16"}, "from": "causal", "attempts": 2}
    replayed = Replayed(path, task=second)
    assert not replayed.drift()
    replayed.ask([Message("user", "another task")], 0)
    assert replayed.drift() == (
        f"1 request differs from that on record: {path} is of another task: to: full then, sigmoid now; from: none then, causal now; "
        "consts: D=128,T=f16 then, D=64,T=f16 now"
    )
    same = Replayed(path, task={**task, "attempts": 2})
    same.ask([Message("user", "other words")], 0)
    assert same.drift().endswith("prompts, reports or the language have changed since")
    with pytest.raises(CuirError, match="U607") as error:
        Replayed(path, exact=True, task=second).ask([Message("user", "another task")], 0)
    assert "to: full then, sigmoid now" in (error.value.diagnostics[0].hint or "")


def test_secrets_are_not_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANY_API_KEY", KEY)

    class Leaking(Stages):
        def opening(self) -> list[Message]:
            return [Message("user", f"a specification that holds {KEY}")]

    path = tmp_path / "t.jsonl"
    improve(Leaking(), Scripted({0: ["passed"]}), Budget(), recorder=Recorder(path, {}, "scripted"))
    assert KEY not in path.read_text() and "specification that holds" in path.read_text()


def test_a_transcript_that_was_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    improve(Stages(), Scripted({0: ["parse", "passed"]}), Budget(), recorder=Recorder(path, {}, "scripted"))
    text = path.read_text()
    path.write_text(text[:-40])
    assert read_transcript(path).outcome is None and len(read_transcript(path).exchanges) == 2
    lines = text.splitlines()
    for broken in (
        "",
        "no json\n",
        lines[1] + "\n",
        lines[0] + "\n" + lines[3] + "\n" + lines[1] + "\n",
        '{"kind": "head", "format": 99}\n',
    ):
        path.write_text(broken)
        with pytest.raises(CuirError, match="U606"):
            read_transcript(path)
    with pytest.raises(CuirError, match="U606"):
        read_transcript(tmp_path / "none.jsonl")


def test_of_requests_that_hold_text_of_others_only_hashes_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "kept.jsonl"
    improve(Stages(), Scripted({0: ["parse", "passed"]}), Budget(), recorder=Recorder(path, {}, "scripted", withheld=True))
    retained = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [m for m in retained if m["kind"] == "message"] and all(
        ("text" in m) == (m["role"] == "system") for m in retained if m["kind"] == "message"
    )
    asks = Replayed(path, exact=True)
    assert improve(Stages(), asks, Budget()).ok and not asks.drifted
