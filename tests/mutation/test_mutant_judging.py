"""Judging mutants: each by the stages of verification, within a limit, in parallel, and going on where an interrupted run ended.

Mutants of programs whose specification is a function: refused by schedules and numbers, and arguments without splice points.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import corpus
from corpus.computes import COMPUTES
from cuir import CuirError, parse, show
from cuir.bridging import attention_consts
from cuir.campaigns.local_executor import LocalExecutor
from cuir.checking.checked import Const
from cuir.cli.command_inputs import read_program, read_variant
from cuir.mutation import FAULTS, Job, Judged, Mutant, MutateReport, choose_mutants, judge, mutant_comparison, mutants, run
from cuir.mutation.mutant_comparison import Trial, _is_same
from cuir.mutation.mutation_report import HEAD
from cuir.spec.function_specification import FunctionSpecification
from cuir.spec.loading import as_any
from cuir.spec.specification import Specification
from cuir.syntax.nodes import Program
from cuir.syntax.types import F16
from cuir.verification import verify
from cuir.verification.report import Stage, VerifyReport


def causal() -> Specification:
    return read_variant("causal", ())


PROGRAM = read_program("flash_fwd")
ALL = mutants(PROGRAM)
JOB = Job(causal, "flash_fwd", attention_consts("f16", 64) | {"BM": 64, "BN": 64})


@functools.cache
def verify_program() -> VerifyReport:
    return verify(PROGRAM, causal(), JOB.kernel, JOB.consts, JOB.level)  # type: ignore[arg-type]


@pytest.fixture
def verified_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program from which mutants are made is verified once for all tests."""

    def verify_once(program: Program, *arguments: Any, **named: Any) -> VerifyReport:
        return (
            verify_program()
            if program is PROGRAM and arguments[1:] == (JOB.kernel, JOB.consts, JOB.level)
            else verify(program, *arguments, **named)
        )

    monkeypatch.setattr("cuir.mutation.mutant_judging.verify", verify_once)


def verdict(m: Mutant, job: Job = JOB) -> tuple[str, str, str, str]:
    return judge(m.text, show(PROGRAM), causal(), job)


def find_mutant(operator: str, description: str = "") -> Mutant:
    return next(m for m in ALL if m.operator == operator and description in m.description)


KILLED = {
    1: ("drop wait", "k_full", "schedules"),
    2: ("drop wait", "v_empty", "schedules"),
    3: ("early arrive", "v_empty[u].arrive()` before `mma_wait(acc)`", "schedules"),
    4: ("drop mma_wait", "mma_wait(S)", "schedules"),
    5: ("drop fence_async", "", "schedules"),
    6: ("repeat arrive", "k_empty", "schedules"),
    7: ("wrong bytes", "nbytes(sK[s]) // 2", "schedules"),
    8: ("parity turned", "v_empty", "schedules"),
    9: ("drop arrive", "q_empty", "schedules"),
    11: ("comparison", "`k <= q + (N - M)`", "contracts"),
    12: ("filled without a copy", "V[b", "schedules"),
    14: ("registers not by 8", "", "well-formed"),
    15: ("drop store_wait", "", "schedules"),
}


@pytest.mark.sweep
@pytest.mark.usefixtures("verified_once")
@pytest.mark.parametrize("fault", KILLED)
def test_known_faults_are_refused_where_they_belong(fault: int) -> None:
    operator, description, stage = KILLED[fault]
    m = find_mutant(operator, description)
    assert m.fault == fault and not m.equivalent
    result = verdict(m)
    assert result[:2] == ("killed", stage) and result[2] and result[3], m.diff(show(PROGRAM))


@pytest.mark.usefixtures("verified_once")
@pytest.mark.parametrize(
    ("faults", "least"),
    [
        ([4], 1),
        pytest.param(list(FAULTS), 8, marks=pytest.mark.thorough("one mutant of each class, most of which have a test above")),
    ],
)
def test_no_mutant_of_any_class_survives(faults: list[int], least: int) -> None:
    some = choose_mutants(ALL, faults, limit=len(faults), seed=2)
    report = MutateReport(run(PROGRAM, some, JOB))
    killed, total = report.score(report.results)
    assert killed == total >= least, report.as_markdown()
    assert not report.of("survived") + report.of("crashed") + report.of("out of time")
    argued = report.of("same result") + report.of("equivalent")
    assert {r.id for r in report.of("killed") + argued} == {m.id for m in some} and all(r.reason for r in argued)
    assert report.rows()[-1][0] == "all" and len(report.rows()) == len(faults) + 1
    assert f"{killed} of {total}" in report.summary() and f"{killed} of {total}" in report.as_markdown()
    data = json.loads(json.dumps(report.as_json()))
    assert data["killed"] == killed and sum(c["all"] for c in data["classes"].values()) == total == data["all"]


@pytest.mark.usefixtures("verified_once")
def test_survivors_are_in_the_report_with_their_difference() -> None:
    item = Judged("1", 3, "early arrive", (7, 1), "`x` before `y`", "survived", "", "", "", 1.0, "--- original")
    same = replace(item, id="2", verdict="same result", reason="nobody waits", what="`z` twice")
    report = MutateReport([item, same, replace(item, id="3", verdict="killed", stage="every schedule", code="R401")])
    assert report.score(report.results) == (1, 2) and "1 shown to give the same result" in report.summary()
    text = report.as_markdown()
    assert "`x` before `y` (survived)" in text and "`z` twice" not in text.split("refused")[1].split("(survived)")[0]


@pytest.mark.usefixtures("verified_once")
def test_a_class_without_a_fault_has_no_score() -> None:
    item = Judged("1", 3, "early arrive", (7, 1), "`x` before `y`", "equivalent", "", "", "nobody waits", 1.0, "")
    rows = MutateReport([item, replace(item, id="2", fault=4, verdict="killed")]).rows()
    score = HEAD.index("score")
    assert [row[score] for row in rows] == ["-", "1/1", "1/1"] and MutateReport([item]).rows()[-1][score] == "-"
    assert "%" not in MutateReport([item]).summary()


@pytest.mark.usefixtures("verified_once")
@pytest.mark.usefixtures("few_problems")
@pytest.mark.sweep
@pytest.mark.parametrize("argument", ["nothing is left", "registers alone", "retires all products", "may land before"])
def test_harmless_mutants_are_verified(argument: str) -> None:
    """The arguments that operators give hold: verification finds nothing."""
    m = next(m for m in ALL if m.equivalent and argument in m.equivalent)
    assert verify(m.program, causal(), "flash_fwd", JOB.consts, seeded=0).ok, m.diff(show(PROGRAM))


@pytest.mark.thorough
@pytest.mark.usefixtures("verified_once")
def test_a_place_that_the_consts_leave_out_is_no_fault() -> None:
    program = read_program("flash_fwd_sm90")
    results = {m.description: m for m in mutants(program)}
    job = replace(JOB, kernel="flash_fwd")
    for description in ("without `turn[wg].sync()`", "turn: `2` and one more", "`q_empty[y].arrive()` twice"):
        verdict = judge(results[description].text, show(program), causal(), job)
        assert verdict[0] == ("killed" if "q_empty" in description else "equivalent"), (description, verdict)
    item = next(m for m in results.values() if m.operator == "own CTA alone")
    assert judge(item.text, show(program), causal(), job)[0] == "equivalent"
    pair = replace(job, consts={**job.consts, "CLUSTER": 2, "BM": 128})
    assert judge(item.text, show(program), causal(), pair)[0] == "killed"


# ---- what can go wrong
@pytest.mark.thorough
@pytest.mark.usefixtures("verified_once")
def test_a_quotient_by_one_is_the_product_with_one() -> None:
    """Sigmoid attention rescales nothing: its factor is 1.0, and x / 1.0 is x * 1.0 to the bit."""
    program = read_program("sigmoid")
    item = next(m for m in mutants(program) if m.operator == "rescaled by the inverse")
    job = Job(causal, "flash_fwd", attention_consts("f16", 64) | {"BM": 64, "BN": 64})
    assert judge(item.text, show(program), causal(), job)[0] == "equivalent"
    assert verdict(find_mutant("rescaled by the inverse"))[0] == "killed"


@pytest.mark.usefixtures("verified_once")
def test_a_mutant_has_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(*arguments: object, **named: object) -> None:
        while True:
            pass

    monkeypatch.setattr("cuir.mutation.mutant_judging.verify", endless)
    result = verdict(find_mutant("comparison", "`k <= q"), replace(JOB, seconds=0.1))
    assert result == ("out of time", "", "", "no verdict within 0.1 s")


@pytest.mark.usefixtures("verified_once")
def test_a_fault_of_ours_is_a_verdict_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **named: object) -> None:
        raise RuntimeError("lost")

    monkeypatch.setattr("cuir.mutation.mutant_judging.verify", fail)
    assert verdict(find_mutant("drop fence_async")) == ("crashed", "", "", "RuntimeError: lost")


@pytest.mark.usefixtures("verified_once")
def test_a_program_that_is_wrong_is_not_mutated() -> None:
    with pytest.raises(CuirError) as caught:
        run(find_mutant("comparison", "`k <= q").program, ALL[:1], JOB)
    assert caught.value.diagnostics[0].code == "V107"


@pytest.mark.usefixtures("verified_once")
def test_an_interrupted_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, some = tmp_path / "new" / "mutants.jsonl", choose_mutants(ALL, [4, 14], 6, seed=1)
    description: list[tuple[int, int]] = []
    first = run(PROGRAM, some[:5], JOB, out, progress=lambda finished, total, item: description.append((finished, total)))
    assert description == [(i, 5) for i in range(1, 6)] and [r.id for r in first] == [m.id for m in some[:5]]
    lost = json.loads(out.read_text(encoding="utf-8").splitlines()[-1])["id"]
    out.write_text(out.read_text(encoding="utf-8")[:-40], encoding="utf-8")  # the last line was cut short
    judged: list[str] = []

    def counting(text: str, *rest: object) -> tuple[str, str, str, str]:
        judged.append(text)
        return judge(text, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr("cuir.mutation.mutant_judging.judge", counting)
    repeated = run(PROGRAM, some, JOB, out)
    assert [r for r in repeated[:5] if r.id != lost] == [r for r in first if r.id != lost]
    assert len(judged) == sum(not m.equivalent for m in some if m.id == lost or m is some[5])
    assert run(PROGRAM, some, JOB, out) == repeated
    assert Judged.from_json(json.loads(out.read_text(encoding="utf-8").splitlines()[-1])) in repeated


def other_consts(path: Path) -> Job:
    return replace(JOB, consts={**JOB.consts, "STAGES": 3})


def garbage(path: Path) -> Job:
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([lines[0], '{"id": 1}', *lines[1:]]), encoding="utf-8")
    return JOB


def no_text(path: Path) -> Job:
    path.write_bytes(b"\xff\xfe")
    return JOB


def no_json(path: Path) -> Job:
    path.write_text("notes of mine\n", encoding="utf-8")
    return JOB


def other_json(path: Path) -> Job:
    path.write_text('{"suite": "paper"}\n', encoding="utf-8")
    return JOB


@pytest.mark.usefixtures("verified_once")
@pytest.mark.parametrize(
    ("change", "word"),
    [
        (other_consts, "other consts"),
        (garbage, "line 2"),
        *((f, "holds no results of `cuir mutate`") for f in (no_text, no_json, other_json)),
    ],
)
def test_results_of_something_else_are_refused(change: Callable[[Path], Job], word: str, tmp_path: Path) -> None:
    out = tmp_path / "mutants.jsonl"
    out.write_text(json.dumps(JOB.head(PROGRAM, causal().name)) + "\n", encoding="utf-8")  # so that the program is not verified
    run(PROGRAM, [find_mutant("registers not by 8")], JOB, out)
    job = change(out)
    before = out.read_bytes()
    with pytest.raises(CuirError) as caught:
        run(PROGRAM, [find_mutant("registers not by 8")], job, out)
    result = caught.value.diagnostics[0]
    assert result.code == "U122" and word in result.message and "--out" in (result.hint or "") and out.read_bytes() == before


@pytest.mark.usefixtures("verified_once")
def test_an_empty_file_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (out := tmp_path / "mutants.jsonl").touch()
    requests: list[object] = []
    monkeypatch.setattr(
        "cuir.mutation.mutant_judging.verify", lambda *job: requests.append(job) or VerifyReport("", "", "", {}, [Stage("", "", "passed")])
    )
    run(PROGRAM, [], JOB, out)
    assert requests and json.loads(out.read_text(encoding="utf-8"))["mutate"] == "flash_fwd"


@pytest.mark.thorough
@pytest.mark.usefixtures("verified_once")
def test_processes_come_to_the_same_verdicts(tmp_path: Path) -> None:
    some = [m for m in ALL if m.fault == 14][:3]
    alone, together = run(PROGRAM, some, JOB), run(PROGRAM, some, JOB, tmp_path / "mutants.jsonl", LocalExecutor(2))
    assert [replace(r, seconds=0) for r in together] == [replace(r, seconds=0) for r in alone]
    assert len((tmp_path / "mutants.jsonl").read_text(encoding="utf-8").splitlines()) == 4


def make_mutants(program: str, kernel: str, consts: dict[str, Const]) -> tuple[Program, list[Mutant], Job]:
    parsed, computed = parse(corpus.programs()[program].read_text(encoding="utf-8"), program), COMPUTES[program][kernel]
    spec = as_any(corpus.specification(computed.specification), computed.specification)
    return parsed, mutants(parsed, kernel), Job(lambda: spec, kernel, {"T": F16, **computed.tested, **consts})


@pytest.mark.parametrize(
    ("operator", "verdict", "stage"),
    [
        ("drop mma_wait", "killed", "schedules"),
        ("drop fence_async", "killed", "schedules"),
        ("number", "killed", "numbers"),
        pytest.param(
            "store_wait at the end", "same result", "", marks=pytest.mark.thorough("test_equivalent_mutants.py has this verdict, too")
        ),
    ],
)
def test_mutants_of_a_matrix_product(operator: str, verdict: str, stage: str) -> None:
    program, result, job = make_mutants("gemm", "gemm", {"BM": 64, "BN": 64})
    chosen = [m for m in result if m.operator == operator and not m.equivalent]
    verdicts = [judge(m.text, show(program), job.load(), job) for m in chosen[:1]]
    assert [v[:2] for v in verdicts] == [(verdict, stage)], (verdicts, sorted({m.operator for m in result}))


ROWS = """
@func
def grow(x):
    return where(x > 1.0, x * 3.0, x + 1.0)

@kernel(arch="sm_80")
def turn(X: Global[f32, M, 64], Y: Global[f32, M, 64]):
    sX = shared(f32, [64, 64])
    work = tiles(cdiv(M, 64))
    with role("all", warps=2) as w:
        for t in work:
            v = 1 - w
            i, j = t * 64 + w * 32, t * 64 + v * 32
            store(sX[w * 32 : w * 32 + 32], load(X[i : i + 32, 0 : 64]))
            sync()
            store(Y[j : j + 32, 0 : 64], grow(load(sX[v * 32 : v * 32 + 32])))
            sync()
"""


def turn(X: torch.Tensor) -> torch.Tensor:
    return torch.where(X > 1, X * 3, X + 1)


def judge_in_plain_order(m: Mutant, spec: FunctionSpecification) -> tuple[str, str, str]:
    """Return stage, code and reason of the refusal by `cuir verify`, which asks for all schedules before any number."""
    try:
        report = verify(m.program, spec, shrink=False)
    except CuirError as error:
        return "well-formed", error.diagnostics[0].code, error.diagnostics[0].message
    failed = next((s for s in report.stages if s.verdict == "failed"), None)
    return ("", "", "") if failed is None else (failed.name, failed.diagnostics[0].code, failed.reason)


def test_rows_are_those_of_the_plain_order() -> None:
    """Numbers of a few runs come first, and yet the rows of faults of every stage are the same to the byte."""
    program, spec = parse(ROWS), FunctionSpecification("turn", turn)
    rows = {}
    for m in choose_mutants(mutants(program), (11, 12, 14, 15), limit=7, seed=3):
        rows[m.id] = judge(m.text, show(program), spec, Job(lambda: spec, "turn", {}))
        assert rows[m.id] == ("killed", *judge_in_plain_order(m, spec)), m.diff(show(program))
    assert {row[1] for row in rows.values()} == {"well-formed", "schedules", "numbers"}


def test_wrong_numbers_are_met_before_all_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    program, spec = parse(ROWS), FunctionSpecification("turn", turn)
    wrong = next(m for m in mutants(program) if m.description == "`3.0` becomes `4.0`")
    monkeypatch.setattr("cuir.verification.schedules_stage.check_schedules", lambda *_: pytest.fail("a schedule ran"))
    assert judge(wrong.text, show(program), spec, Job(lambda: spec, "turn", {}))[:3] == ("killed", "numbers", "V301")


def test_trips_that_leave_out_a_part() -> None:
    """Only parts far above the others tell: exp2 of the difference overflows."""
    program, result, job = make_mutants("decode_paged", "combine", {"D": 64})
    less = [m for m in result if "SP - 1" in m.description]
    assert len(less) >= 2
    for m in less:
        assert judge(m.text, show(program), job.load(), job)[:2] == ("killed", "numbers"), m.description


def test_launches_are_those_of_the_signature() -> None:
    program, result, job = make_mutants("gemm", "gemm", {"BM": 64, "BN": 64})
    trial = Trial(program, result[0].program, job.load(), "gemm", job.consts, "quick")
    assert {grid for _, grid in trial.launches} == {1, 2} and "long K" in trial.extent
    assert len(trial.problems) > 8 and trial.has_same_bits(program)


def test_sums_in_any_order_are_compared_as_numbers() -> None:
    x = torch.randn(100, generator=torch.Generator().manual_seed(0))
    y = x * (1 + 2.0**-22)
    assert not _is_same((x, True), (y, True)) and _is_same((x, False), (y, False)) and not _is_same((x, False), (x * 1.001, False))
    assert not _is_same((x, False), (torch.full_like(x, torch.nan), False))


def test_a_mutant_is_compared_on_the_inputs_of_the_original() -> None:
    """Decisive inputs are made from a kernel's text; the number of a row that has kept no key decides nothing."""
    program, result, job = make_mutants("decode_paged", "decode", {"D": 64})
    (mutant,) = (m for m in result if m.operator == "number" and m.place == (22, 30))
    trial = Trial(program, mutant.program, job.load(), "decode", job.consts, "quick")
    trial.problems = [(case, grid) for case, grid in trial.problems if "decisive 0" in str(case)]
    assert len(trial.problems) == 1 and trial.has_same_bits(mutant.program)


def test_trials_share_what_follows_from_the_original(monkeypatch: pytest.MonkeyPatch) -> None:
    program, spec = parse(ROWS), FunctionSpecification("turn", turn)
    trials = [Trial(program, m.program, spec, "turn", {}, "quick") for m in mutants(program)[:2]]
    assert all(t.has_same_bits(t.mutant) for t in trials) and trials[0].original is trials[1].original
    before = [x.clone() for x, _ in trials[0].expected or ()]
    runs: list[object] = []
    interpret = mutant_comparison.interpret
    monkeypatch.setattr(mutant_comparison, "interpret", lambda *a, **k: runs.append(a) or interpret(*a, **k))
    wrong = parse(ROWS.replace("x * 3.0", "x * 4.0"))
    assert not trials[0].has_same_bits(wrong) and len(runs) == 1  # the first difference ends the comparison
    assert before and all(map(torch.equal, before, (x for x, _ in trials[1].expected or ())))
