"""The pass `tune` with scripted answers, and a GPU that is a formula of the program's text. No model is behind any of it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

import corpus
from cuir import CuirError, parse
from cuir.performance.search.compiling import BuildResult
from cuir.performance.search.search import Outcome
from cuir.spec.specification import Specification
from cuir.syntax.types import F16
from llm.budget import Budget
from llm.limited_processes import LimitedProcesses
from llm.messages import Answer, Message
from llm.passes import tune as tune_pass
from llm.passes.tune import Target, Tuning, tune
from llm.prompting import fence

TEXT = corpus.programs()["flash_fwd"].read_text(encoding="utf-8")
KERNEL = TEXT[TEXT.index("@kernel") :]
FIXED = {"T": F16, "D": 64}
SETTING = {"BM": 64, "BN": 32}


def causal() -> Specification:
    return corpus.variant("causal")()


def kernel(*changes: tuple[str, str]) -> str:
    """An answer: the kernel at the setting of these tests, with changes of its text."""
    text = KERNEL.replace("BM: const = 128, BN: const = 128", "BM: const = 64, BN: const = 32")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return f"It waits less.\n\n{fence(text, 'cuir')}"


STAGES = kernel(("STAGES: const = 2", "STAGES: const = 3"))
LATE = kernel(
    (
        "                    mma_wait(acc)\n                    v_empty[u].arrive()\n",
        "                    v_empty[u].arrive()\n                    mma_wait(acc)\n",
    )
)
EARLY_TILE = "```cuir\n@func\ndef tile(t):\n    return t // H % B, t % H, t // (H * B)\n```"


class Script:
    """Scripted answers of each sample, one after the other; what was asked is kept."""

    model = "a script"

    def __init__(self, *samples: Sequence[str]):
        self.remaining, self.requests = [list(s) for s in samples], list[tuple[Message, ...]]()

    def ask(self, messages: Sequence[Message], sample: int) -> Answer:
        self.requests.append(tuple(messages))
        return Answer(self.remaining[sample].pop(0), 100, 10, 0.0, 0.0, False, "stop", self.model)


class Device:
    """A program with three stages is fastest, one whose tiles come in another order slowest."""

    def __init__(self, status: str = "right"):
        self.status = status

    def check(self, consts: Mapping, text: str) -> tuple[str, str]:
        return (self.status, "it is") if "STAGES: const = 3" in text else ("right", "")

    def time(self, consts: Mapping, text: str) -> float:
        return 2.0 - 0.5 * (consts["STAGES"] == 3) + 0.25 * ("cdiv(M, BM) - 1" not in text)


def run_here(function: Callable[..., Any], *arguments: Any, seconds: float) -> Any:
    """In place of `LimitedProcesses`: in this process."""
    return function(*arguments)


@pytest.fixture
def unverified(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """verify() finds nothing; the numbers of schedules that it was asked for."""
    requests: list[int | None] = []

    def find(*of: Any, seeded: int | None = None, **options: Any) -> Any:
        requests.append(seeded)
        return type("Report", (), {"stages": []})()

    monkeypatch.setattr(tune_pass, "verify", find)
    return requests


def tuning(device: Device | None = None, difference: Any = run_here, compile: Any = None, settings: tuple[Outcome, ...] = ()) -> Tuning:
    target = Target(parse(TEXT), "flash_fwd", causal, FIXED, "causal attention", "a formula", settings)
    return Tuning.of(target, SETTING, device, compile, difference)


def test_rounds_go_on_from_the_best_until_one_brings_nothing(unverified: list) -> None:
    script = Script([STAGES, EARLY_TILE, "no program at all"])
    result = tune(tuning(Device()), script, Budget(), attempts=2)
    assert result.faster and result.best.consts["STAGES"] == 3 and result.speedup == pytest.approx(2.0 / 1.5)
    assert [e.status for e in result.entries] == ["faster", "slower"] and len(result.outcomes) == 2
    assert unverified == [None, tune_pass.SEEDED, None], "what is kept is proven under more schedules"
    repeated = script.requests[1][-1].text
    assert "STAGES: const = 3" in repeated and "took 2.0000 ms" in repeated and "-    " in repeated, (
        "the second round starts from the best, and knows what was tried"
    )


def test_what_is_slower_is_told_with_its_times(unverified: list) -> None:
    script = Script([EARLY_TILE, STAGES])
    build = BuildResult(registers=168, spills=16, serialised=1, exponentials=(0, 64, 8), warnings=("(C7514) a loss",))
    result = tune(tuning(Device(), compile=lambda *of: build), script, Budget(attempts=2), attempts=2)
    feedback = script.requests[1][-1].text
    assert (
        "V502" in feedback
        and "2.2500 ms where the best so far takes 2.0000 ms (+12.5%)" in feedback
        and "168 registers" in feedback
        and "16 bytes" in feedback
    )
    assert "ptxas of its products: (C7514) a loss" in feedback
    assert "bytes of shared memory" in feedback and "waits for products: 0, 64, 8" in feedback
    assert result.faster and result.why.startswith("the requests are spent")


def test_settings_that_a_search_has_timed_are_told_in_every_round(unverified: list) -> None:
    expected_values = {**FIXED, **SETTING, "STAGES": 2}
    settings = (Outcome(expected_values, "timed", "", [2.0]), Outcome({**expected_values, "BN": 64}, "timed", "", [2.5]))
    script = Script([STAGES, "no program at all"])
    tune(tuning(Device(), settings=settings), script, Budget(), attempts=1)
    assert len(script.requests) == 2
    for requests in script.requests:
        assert "* the first program as it is: 2.0000 ms\n* BN=64: 2.5000 ms" in requests[-1].text
    assert "A search over consts" not in tune_pass.TunePass(item := tuning(Device()), item.contest.best).opening()[-1].text


@pytest.mark.parametrize(("status", "code"), [("wrong", "V401"), ("hangs", "V403"), ("fault", "V403")])
def test_what_is_wrong_on_the_gpu_is_not_kept(unverified: list, status: str, code: str) -> None:
    script = Script([STAGES, STAGES])
    result = tune(tuning(Device(status)), script, Budget(), attempts=2)
    assert not result.faster and result.best.consts["STAGES"] == 2 and result.speedup == 1.0
    assert code in script.requests[1][-1].text


def test_what_does_not_compile_is_told(unverified: list) -> None:
    script = Script([STAGES, STAGES])
    tune(
        tuning(Device(), compile=lambda text, kernel, consts: BuildResult("L004: too many" if consts["STAGES"] == 3 else "")),
        script,
        Budget(),
        attempts=2,
    )
    assert "V503" in script.requests[1][-1].text and "L004: too many" in script.requests[1][-1].text


def test_without_a_gpu_one_round_ranks_nothing_and_keeps_nothing(unverified: list) -> None:
    result = tune(tuning(), Script([STAGES, EARLY_TILE], [EARLY_TILE]), Budget(), k=2)
    assert not result.faster and result.best.consts["STAGES"] == 2 and len(result.outcomes) == 1
    assert {e.status for e in result.entries} == {"unranked"} and not result.start.milliseconds


@pytest.mark.parametrize(
    ("answer", "stage", "code"),
    [
        ("I would rather not.", "answer", "A001"),
        ("```cuir\nimport os\n```", "parse", "P005"),
        ("```cuir\n@func\ndef tile(t):\n    while True:\n        t = t\n    return t, t, t\n```", "parse", "P005"),
        (kernel(("STAGES: const = 2", "STAGES: const = 30")), "check", "M301"),
        (kernel(("def flash_fwd(", "def faster(")), "check", "V501"),
        (kernel(("scale: f32, *", "scale: f32, speed: f32, *")), "check", "V501"),
        (kernel(), "speed", "V502"),
    ],
)
def test_answers_that_get_no_further(unverified: list, answer: str, stage: str, code: str) -> None:
    item = tuning(Device())
    verdict = item.consider(item.contest.best.text, answer)
    assert (verdict.stage, verdict.ok, [d.code for d in verdict.diagnostics][:1]) == (stage, False, [code]) and not item.contest.entries


def test_time_is_limited_and_the_end_of_a_process_is_no_end(unverified: list) -> None:
    def late(*of: Any, seconds: float) -> Any:
        raise tune_pass.OutOfTime

    def dead(*of: Any, seconds: float) -> Any:
        raise tune_pass.Died("ended by signal 9")

    for difference, code in ((late, "A006"), (dead, "A007")):
        verdict = tuning(Device(), difference).consider(TEXT, STAGES)
        assert verdict.stage == "time" and verdict.diagnostics[0].code == code


def test_a_program_that_does_not_fit_is_no_start() -> None:
    target = Target(parse(TEXT), "flash_fwd", causal, FIXED, "", "")
    with pytest.raises(CuirError) as error:
        Tuning.of(target, {"STAGES": 30}, None, None, run_here)  # type: ignore[arg-type]
    assert error.value.diagnostics[0].code == "M301"


@pytest.mark.thorough
def test_proposals_are_proven_in_a_process_of_their_own() -> None:
    with LimitedProcesses() as difference:
        item = tuning(Device(), difference)
        item.target = Target(item.target.program, "flash_fwd", functools.partial(corpus.variant("causal")), FIXED, "", "")
        wrong = item.consider(item.contest.best.text, LATE)
        assert wrong.stage == "schedules" and wrong.diagnostics[0].code == "R401", "a stage is given back before its product is done"
        assert "v_empty[u].arrive()" in wrong.text and not item.contest.entries
        right = item.prove(item.contest.best.text, EARLY_TILE)
        assert right.stage == "speed" and "t // (H * B)" in right.text
