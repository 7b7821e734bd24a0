"""Lifts recorded from a model, replayed without a network: every answer gets the verdict that it got then, as far as that is cheap.

Stages behind the orchestration take ten seconds of a processor for each; `cuir lift corpus/cuda/NAME.cu --replay FILE` goes through them as well.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

import corpus
import llm
from cuir.attn.splicing.splice import transfer
from cuir.checking.checker import check
from cuir.cli.command_inputs import read_specification
from cuir.spec.loading import as_specification
from cuir.spec.specification import Lengths
from cuir.syntax.types import DTYPES, F16
from cuir.verification import Case, check_numbers
from cuir.verification.spec_dispatch import check_case, make_number_cases, prepare_specification
from llm.answer import program_text, read
from llm.cuda_source import annotate
from llm.expert_source import read_expert_source
from llm.loop import STAGES
from llm.orchestration import compare
from llm.orchestration_of_program import of_program
from llm.passes.lift import LiftJob, job_of, judge_answer, order
from llm.transcript import Exchange, Replayed, Transcript, read_transcript

FOLDER = Path(llm.__file__).parent / "transcripts"
LIFTS = sorted(FOLDER.glob("lift*.jsonl"))
RECORDED, FOREIGN = (  # of sources of the corpus, and of sources that are not kept here
    [p for p in LIFTS if (Path(read_transcript(p).task["source"]).stem in corpus.cuda()) is in_corpus] for in_corpus in (True, False)
)


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
