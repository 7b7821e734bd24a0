"""The recorded transcripts of real models: they replay without a network, and what was judged then is judged so today, as far as that is cheap.

Lifts recorded from a model, replayed without a network: every answer gets the verdict that it got then, as far as that is cheap.

Stages behind the orchestration take ten seconds of a processor for each; `cuir lift corpus/cuda/NAME.cu --replay FILE` goes through them as well.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pytest

import corpus
import llm
from cuir.attn.splicing.splice import transfer
from cuir.checking.checker import check
from cuir.cli.command_inputs import read_specification
from cuir.performance.search.space import from_plain
from cuir.spec.loading import as_specification
from cuir.spec.specification import Lengths
from cuir.syntax.parser import parse
from cuir.syntax.printer import show
from cuir.syntax.types import DTYPES, F16
from cuir.text.diagnostics import CuirError
from cuir.verification import Case, check_numbers
from cuir.verification.spec_dispatch import check_case, make_number_cases, prepare_specification
from llm.answer import program_text, read
from llm.cuda_source import annotate
from llm.expert_source import read_expert_source
from llm.loop import STAGES
from llm.messages import Answer
from llm.orchestration import compare
from llm.orchestration_of_program import of_program
from llm.passes.lift import LiftJob, job_of, judge_answer, order
from llm.transcript import Exchange, Replayed, Transcript, read_transcript, share_texts

FILES = sorted((Path(__file__).parent.parent.parent / "llm/transcripts").glob("[pt]*-*.jsonl"))  # ports, transfers, tunings


def judge_stage(e: Exchange) -> str:
    """Return how near the text of an answer is to a program: the first stages of a pass's judgement."""
    try:
        block = program_text(e.answer.text, e.answer.finish)
    except CuirError:
        return "answer"
    try:
        read(block)
    except CuirError:
        return "parse"
    return "program"


@pytest.mark.sweep(4)
@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_replays_and_is_judged_alike(path: Path) -> None:
    text = read_transcript(path)
    assert text.exchanges and text.model and text.outcome is not None and {"cubridge", "litellm", "prompts"} <= text.versions.keys()
    asks = Replayed(path, exact=True)
    for e in text.exchanges:
        assert asks.ask(e.request, e.sample).text == e.answer.text
        stage = e.verdict["stage"]
        assert judge_stage(e) == (stage if stage in ("answer", "parse") else "program"), f"sample {e.sample}, attempt {e.attempt}"
        if stage in ("numbers", "speed", "passed"):  # it was well-formed, and is
            program = parse(e.verdict["text"])
            assert show(program) == e.verdict["text"]
            if "consts" in text.task:  # a proposal of `tune` is judged under settings of its own
                check(program, consts=from_plain(text.task["consts"]))
    assert text.outcome["ok"] == any(e.verdict["stage"] in ("speed", "passed") for e in text.exchanges)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_nothing_secret_is_in_it(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert "sk-" not in text and "Bearer " not in text and "api_key" not in text.lower()


def test_shared_texts_are_read_from_one_file(tmp_path: Path) -> None:
    """Transcripts of a folder leave out the system's message, which stands once beside them."""
    lines = [
        {"kind": "head", "format": 1, "task": {}, "model": "m", "versions": {}},
        {"kind": "message", "id": "a", "role": "system", "text": "the language"},
        {"kind": "message", "id": "b", "role": "user", "text": "a task"},
        {"kind": "message", "id": "c", "role": "user"},
        {
            "kind": "exchange",
            "sample": 0,
            "attempt": 1,
            "request": ["a", "b", "c"],
            "answer": asdict(Answer("x", 1, 1, None, 0.0, False, "stop", "m")),
            "verdict": {},
        },
    ]
    paths = [tmp_path / "one.jsonl", tmp_path / "two.jsonl"]
    for path in paths:
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    before = [read_transcript(path) for path in paths]
    for _ in range(2):
        share_texts(tmp_path)
        assert [read_transcript(path) for path in paths] == before
        assert all("the language" not in path.read_text(encoding="utf-8") for path in paths)
    assert [m.text for m in before[0].exchanges[0].request] == ["the language", "a task", ""]
    (tmp_path / "messages.json").write_text("[]", encoding="utf-8")
    with pytest.raises(CuirError, match="U606"):
        read_transcript(paths[0])


FOLDER = Path(llm.__file__).parent / "transcripts"
LIFTS = sorted(FOLDER.glob("lift*.jsonl"))
RECORDED, FOREIGN = (  # of sources of the corpus, and of sources that are not kept here
    [p for p in LIFTS if (Path(read_transcript(p).task["source"]).stem in corpus.cuda()) is in_corpus] for in_corpus in (True, False)
)


@pytest.mark.sweep(4)
@pytest.mark.parametrize("path", FOREIGN, ids=lambda p: p.stem)
def test_what_was_lifted_from_other_sources_is_what_it_was(path: Path) -> None:
    """Without the source: the program that was accepted shows the orchestration that it was accepted for, and computes its specification."""
    transcript = read_transcript(path)
    task, last = transcript.task, transcript.exchanges[-1]
    assert transcript.outcome is not None and transcript.outcome["ok"] and last.verdict["stage"] == "passed"
    program = read(program_text(last.answer.text))
    checked = check(
        program,
        None,
        {
            n: DTYPES[v] if n == "T" else v
            for n, v in task["consts"].items()
            if n in {p.name for k in program.kernels().values() for p in k.params}
        },
    )
    text = last.verdict["extra"]["orchestration"]
    assert checked.arch == task["arch"] and of_program(checked).lines() == text["program"]
    spec = prepare_specification(read_specification(task["spec"], tuple(task["parameters"])), checked.origin, program, checked.consts)
    assert check_case(program, checked, spec, make_number_cases(checked, spec, [], "quick")[0])


def test_what_was_lifted_is_an_origin_of_variants() -> None:
    text = read_transcript(FOLDER / "lift-flash_attention_2_hdim128.jsonl").exchanges[-1].answer.text
    spec = as_specification(corpus.variant("prefix_lm"), "prefix_lm", {"prefix": 40})
    program = transfer(read(program_text(text)), spec).program
    checked = check(program, None, {"T": F16, "D": 128})
    assert checked.arch == "sm_80" and check_numbers(program, checked, spec, Case("small", Lengths(1, 4, 2, 133, 201)))


@pytest.mark.skipif(not RECORDED, reason="no lift is on record in llm/transcripts")
@pytest.mark.parametrize("path", RECORDED, ids=lambda p: p.stem)
def test_a_recorded_lift_is_judged_as_it_was(path: Path) -> None:
    transcript = read_transcript(path)
    assert transcript.task["pass"] == "lift" and transcript.outcome is not None and transcript.outcome["ok"]
    asks, target = Replayed(path, exact=True), job(transcript)
    for roles, exchange in of_steps(transcript, order(target.facts)):
        assert asks.ask(exchange.request, exchange.sample).text == exchange.answer.text
        stage = exchange.verdict["stage"]
        if len(roles) < len(target.facts.roles) or STAGES.index(stage) <= STAGES.index("orchestration"):
            verdict = judge_answer(target, roles, exchange.answer.text, exchange.answer.finish)
            assert verdict.stage == stage, [d.message for d in verdict.diagnostics]
        else:
            checked = check(read(program_text(exchange.answer.text)), None, dict(target.consts))
            assert compare(target.facts, of_program(checked), checked.origin.span) == () and checked.arch == target.arch
    assert stage == "passed" and set(roles) == {r.name for r in target.facts.roles}


def job(transcript: Transcript) -> LiftJob:
    task = transcript.task
    name = Path(task["source"]).stem
    expert = read_expert_source(corpus.launch_of(name))
    result = annotate(expert.text, expert.path.name, expert.compute_macros(task["consts"]["D"]), expert.kernel)
    consts = {"T": DTYPES[task["consts"]["T"]], "D": task["consts"]["D"]}
    return job_of(
        result, task["source"], task["arch"], partial(read_specification, task["spec"], tuple(task["parameters"])), consts, task["level"]
    )


def of_steps(transcript: Transcript, names: list[str]) -> list[tuple[tuple[str, ...], Exchange]]:
    """Each exchange with the roles that its answer was to have. A step ends where an attempt passes."""
    step, result = 1, []
    for exchange in transcript.exchanges:
        result.append((tuple(names[:step]), exchange))
        step += exchange.verdict["ok"]
    return result
