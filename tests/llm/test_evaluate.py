"""Evaluations with a scripted judge and scripted answers: what is counted, what a run goes on from, what the page says. No model is behind any of it."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.recorded import open_transcripts
from cuir import CuirError
from cuir.text.diagnostics import Diagnostic
from llm.budget import Budget
from llm.evaluate import Cell, ProgressCount, Rows, cell_of, evaluate, read
from llm.loop import Verdict
from llm.messages import Answer, Message
from llm.recorded_samples import Recorded
from llm.scores import PUBLISHED, RIGHT, markdown, pass_at, reason, scores

HEAD = {
    "pass": "transfer",
    "origin": "an_origin",
    "consts": {"D": 128},
    "attempts": 3,
    "level": "quick",
    "temperature": None,
    "prompts": "x",
    "replayed": False,
    "date": "today",
    "command": "cuir eval",
}


class Judge:
    """A pass whose answers name the stage that refuses them, and a code."""

    name = "scripted"

    def opening(self) -> list[Message]:
        return [Message("user", "a stage, please")]

    def judge(self, text: str, finish: str = "stop") -> Verdict:
        stage, _, code = text.partition(" ")
        result = (Diagnostic(code, "wrong"),) if code else ()
        return Verdict(stage == "passed", stage, result, None, text)  # type: ignore[arg-type]

    def feedback(self, verdict: Verdict) -> Message:
        return Message("user", f"not {verdict.stage}")


class Script:
    """Answers by variant and sample, one after the other."""

    def __init__(self, answers: dict[tuple[str, int], Sequence[str]], cost: float | None = 0.01):
        self.remaining = {key: list(of) for key, of in answers.items()}
        self.cost, self.requests = cost, 0

    def task(self, cell: Cell) -> Judge:
        return Judge()

    def asks(self, cell: Cell) -> _Asks:
        return _Asks(self, cell)

    def attempts(self, cell: Cell) -> int:
        return 3

    def recorder(self, cell: Cell) -> None:
        return None


class _Asks:
    def __init__(self, script: Script, cell: Cell):
        self.script, self.cell, self.model = script, cell, cell.model

    def ask(self, messages: Sequence[Message], sample: int) -> Answer:
        assert sample == self.cell.sample
        self.script.requests += 1
        remaining = self.script.remaining[self.cell.variant, sample]
        if not remaining:
            raise CuirError.of("U604", "no answer")
        return Answer(remaining.pop(0), 900, 100, self.script.cost, 0.0, False, "stop", self.model)


CELLS = [Cell(v, "m", s) for v in ("a", "b") for s in range(3)]
ANSWERS = {
    ("a", 0): ["passed"],
    ("a", 1): ["parse P001", "passed"],
    ("a", 2): ["check T134", "check M301", "schedules R401"],
    ("b", 0): ["mask V305", "numbers V301", "speed"],
    ("b", 1): ["answer A001", "parse P001", "contracts V101"],
    ("b", 2): ["numbers V301"] * 3,
}


@given(st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_the_estimator_is_the_share_of_choices_that_hold_a_right_sample(of: tuple[int, int, int]) -> None:
    n, c, k = of
    chosen = list(itertools.combinations([i < c for i in range(n)], k))
    assert pass_at(n, c, k) == pytest.approx(sum(map(any, chosen)) / len(chosen))


def test_too_few_samples_give_no_estimate() -> None:
    assert pass_at(2, 2, 3) is None


def test_the_estimator_is_unbiased() -> None:
    rng, p, n, k = random.Random(0), 0.3, 8, 3
    mean = sum(pass_at(n, sum(rng.random() < p for _ in range(n)), k) or 0.0 for _ in range(4000)) / 4000
    assert mean == pytest.approx(1 - (1 - p) ** k, abs=0.02)


def run(tmp_path: Path, answers: dict = ANSWERS, **options: object) -> Rows:
    rows = Rows(tmp_path / "eval.jsonl", HEAD)
    evaluate(CELLS, Script(answers, **options), rows, Budget())
    return rows


def test_the_figures_of_a_model(tmp_path: Path) -> None:
    (result,) = scores(run(tmp_path).rows)
    assert (result.variants, result.samples, result.right, result.incomplete) == (2, 6, 3, 0)
    assert result.at[1] == pytest.approx((2 / 3 + 1 / 3) / 2) and result.at[3] == 1.0 and result.at[5] is None
    assert result.first[1] == pytest.approx((1 / 3 + 0) / 2), "only one sample is right at once"
    assert result.attempts == pytest.approx((1 + 2 + 3 + 3 + 3 + 3) / 6)
    assert result.tokens == 15 * 1000 and result.usd == pytest.approx(0.15)
    assert result.reasons == {
        "parse": 2,
        "types": 1,
        "structure": 1,
        "schedule": 1,
        "mask": 1,
        "numbers": 4,
        "slower than need be": 1,
        "no program": 1,
        "contracts": 1,
    }
    assert result.codes["V301"] == 4 and result.codes["P001"] == 2


@pytest.mark.parametrize(
    ("stage", "codes", "name"),
    [
        ("answer", ["A001"], "no program"),
        ("parse", ["P005"], "parse"),
        ("check", ["N101"], "types"),
        ("check", ["T111"], "types"),
        ("check", ["S215"], "structure"),
        ("check", [], "structure"),
        ("schedules", ["D401"], "schedule"),
        ("time", [], "too slow to verify"),
        ("orchestration", ["S216"], "structure"),
    ],
)
def test_reasons(stage: str, codes: list[str], name: str) -> None:
    assert reason(stage, codes) == name


def test_a_run_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    path = tmp_path / "eval.jsonl"
    whole = run(tmp_path).rows
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([*lines[:4], lines[4][:30]]), encoding="utf-8")  # cut short while the fourth row was written
    rows, script = Rows(path, HEAD), Script(ANSWERS)
    assert [str(c) for c in rows.missing(CELLS)] == ["b m #0", "b m #1", "b m #2"]
    assert evaluate(CELLS, script, rows, Budget()) and script.requests == 9
    assert [{**r, "seconds": 0} for r in read(path)[1]] == [{**r, "seconds": 0} for r in whole]


def test_another_evaluation_is_not_gone_on_with(tmp_path: Path) -> None:
    run(tmp_path)
    with pytest.raises(CuirError, match="another attempts, level") as error:
        Rows(tmp_path / "eval.jsonl", {**HEAD, "attempts": 5, "level": "full"})
    assert error.value.diagnostics[0].code == "U131"
    assert not Rows(tmp_path / "eval.jsonl", {**HEAD, "attempts": 5}, fresh=True).rows


def test_an_empty_file_is_begun(tmp_path: Path) -> None:
    (tmp_path / "eval.jsonl").touch()
    assert Rows(tmp_path / "eval.jsonl", HEAD).missing(CELLS) == CELLS
    assert read(tmp_path / "eval.jsonl")[0] == HEAD


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("text", ["\n", "no JSON", "[]", '{"suite": "flash"}', json.dumps(HEAD) + '\n{"variant": "a"}'])
def test_a_file_of_something_else_stays_as_it_is(tmp_path: Path, text: str, fresh: bool) -> None:
    (tmp_path / "eval.jsonl").write_text(text, encoding="utf-8")
    with pytest.raises(CuirError) as error:
        Rows(tmp_path / "eval.jsonl", HEAD, fresh)
    assert error.value.diagnostics[0].code == "U131" and error.value.diagnostics[0].hint == "--out names another file"
    assert (tmp_path / "eval.jsonl").read_text(encoding="utf-8") == text


def test_what_gets_no_answer_is_cut_short_and_asked_again(tmp_path: Path) -> None:
    rows = run(tmp_path, {**ANSWERS, ("a", 1): ["parse P001"], ("b", 2): []})
    short = {(r["variant"], r["sample"]): len(r["attempts"]) for r in rows.rows if "incomplete" in r}
    assert short == {("a", 1): 1, ("b", 2): 0}
    (result,) = scores(rows.rows)
    assert (result.samples, result.incomplete) == (4, 2)
    assert [str(c) for c in rows.missing(CELLS)] == ["a m #1", "b m #2"]


def test_a_budget_ends_it_and_what_it_cut_is_not_written(tmp_path: Path) -> None:
    rows = Rows(tmp_path / "eval.jsonl", HEAD)
    assert not evaluate(CELLS, Script(ANSWERS), rows, Budget(usd=0.035))
    assert [(r["variant"], r["sample"]) for r in rows.rows] == [("a", 0), ("a", 1)]


def test_side_by_side_comes_to_the_same(tmp_path: Path) -> None:
    text: list[ProgressCount] = []
    rows = Rows(tmp_path / "other.jsonl", HEAD)
    assert evaluate(CELLS, Script(ANSWERS), rows, Budget(), jobs=4, tell=text.append)
    assert scores(rows.rows)[0].reasons == scores(run(tmp_path).rows)[0].reasons
    finished = [t.finished for t in text if t.row is not None]
    assert finished == [1, 2, 3, 4, 5, 6] and all(t.of == 6 for t in text)


def test_a_fault_of_the_call_ends_it(tmp_path: Path) -> None:
    class Keyless(Script):
        def asks(self, cell: Cell) -> _Asks:
            raise CuirError.of("U603", "no key")

    for jobs in (1, 2):
        with pytest.raises(CuirError, match="no key"):
            evaluate(CELLS, Keyless(ANSWERS), Rows(None, HEAD), Budget(), jobs=jobs)


def test_the_page_has_the_published_figures_beside_the_models(tmp_path: Path) -> None:
    page = markdown(HEAD, run(tmp_path, cost=None).rows)
    assert "| m | 0.50 | 1.00 | - | 0.17 |" in page and "unknown" in page
    assert "| CuBridge, published | " + " | ".join(f"{PUBLISHED[k]:.2f}" for k in (1, 3, 5)) in page
    assert "| a | m | 2 of 3 | 1, 2, 3 (failed) | parse 1, types 1, structure 1, schedule 1 |" in page


@pytest.mark.filterwarnings("error")  # what does not fit into the picture is told by a warning
def test_the_plot(tmp_path: Path) -> None:
    from llm.scores import plot

    right = [{**r, "right_at": 1, "attempts": [{"stage": "passed", "codes": []}]} for r in run(tmp_path).rows]
    plot(scores(right), tmp_path / "right.svg")
    assert (tmp_path / "right.svg").exists()

    result = scores([*run(tmp_path).rows, *({**r, "model": "other"} for r in run(tmp_path).rows)])
    plot(result, tmp_path / "eval.svg")
    assert (tmp_path / "eval.svg").read_text(encoding="utf-8").count("<path") > 20
    with pytest.raises(CuirError) as error:
        plot(result, tmp_path / "eval.nonsense")
    assert error.value.diagnostics[0].code == "U108"


RESULTS = Path(__file__).parents[2] / "benchmarks/results"


TRANSCRIPTS = RESULTS.parents[1] / "llm/transcripts"
ARCHIVES = sorted(RESULTS.glob("eval-*.tar.xz"))
ARCHIVES_WITH_ROWS = {
    p.name.removesuffix(".tar.xz"): p for p in ARCHIVES if p.with_name(f"{p.name.removesuffix('.tar.xz')}.jsonl").exists()
}


@pytest.mark.parametrize(
    "name, transcripts", [("eval-transcripts", TRANSCRIPTS), *ARCHIVES_WITH_ROWS.items()], ids=["eval-transcripts", *ARCHIVES_WITH_ROWS]
)
def test_the_results_on_the_page_are_those_of_the_transcripts(name: str, transcripts: Path) -> None:
    """Every row of the shown results is a recorded sample, judged as it was then."""
    head, rows = read(RESULTS / f"{name}.jsonl")

    def make_judge(task: object) -> Judge:
        return Judge()

    recorded = Recorded(open_transcripts(transcripts), "transfer", make_judge)
    results = {cell: (replayed.transcript, number) for cell, (replayed, number) in recorded.cells.items()}
    assert rows
    for row in rows:
        requests = row["variant"] if head["replayed"] else f"{row['variant']} from {head['origin']}"
        transcript, number = results[cell_of({**row, "variant": requests})]
        stages = [e.verdict["stage"] for e in transcript.exchanges if e.sample == number]
        assert row["right_at"] == next(i for i, stage in enumerate(stages, 1) if stage in RIGHT), row["variant"]
