"""The page of an evaluation: figures, samples, and the conversations of those that failed.

The page of a transfer by a model: conversations, then the program; a wrong one is shown and not run.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import cuir
from cuir.pages import resources_section
from cuir.pages.evaluation_page import Exchange, SampleOutcome, Table, render_evaluation_page, render_transfer_page
from cuir.text.diagnostics import CuirError
from cuir.verification.spec_dispatch import prepare_specification
from tests.pages.html_text import OUTSIDE, assert_well_formed, read_section, read_text
from tests.pages.ring_programs import TEXT

ROOT = Path(__file__).parents[2]
ANSWER = "Here it is:\n```cuir\nx = a < b\n```\nDone."


def test_failures_show_questions_answers_and_verdicts() -> None:
    exchanges = [Exchange(1, "user:\nadapt <this>", ANSWER, "check", ["line 3: T156: not <so>"], 120)]
    failed = SampleOutcome("causal", "m/1", 0, None, "no attempt is right", [("check", ["T156"])], 120, 2.0, exchanges)
    right = SampleOutcome("full", "m/1", 1, 1, "passed", [("passed", [])], 90, 1.0)
    page = render_evaluation_page(
        {"pass": "transfer", "level": "quick"}, [Table("Models", ("model", "pass@1"), [("m/1", "0.50")])], [right, failed]
    )
    text = read_text(page)
    failures, rest = read_section(page, "failures"), read_section(page, "right-samples")
    for words in ("adapt <this>", "x = a < b", "T156: not <so>", "1 of 2 samples are right", "pass@1"):
        assert words in text
    assert (
        "T156" in failures
        and "No transcript is at hand" in rest
        and "No transcript" not in failures
        and f'href="#{failed.anchor}"' in page
        and f'id="{failed.anchor}"' in page
    )
    assert not OUTSIDE.search(page)
    assert_well_formed(page)


def test_show_reads_rows_and_transcripts(cuir: Callable, tmp_path: Path) -> None:
    results = tmp_path / "eval.jsonl"
    results.write_bytes((ROOT / "benchmarks/results/eval-transcripts.jsonl").read_bytes())
    call = ("eval", "--show", "--out", results)
    assert cuir(*call, "--replay", ROOT / "llm/transcripts").code == 2  # a folder says nothing without a page
    output = cuir(*call, "--replay", ROOT / "llm/transcripts", "--html", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert output.code == 0 and "No transcript" not in page and page.count('class="exchange"') == 14 and "T156" in page
    missing = cuir(*call, "--record", tmp_path / "none", "--html", tmp_path / "page.html")
    assert missing.code == 2 and "U606" in missing.err


def test_a_recorded_run_names_its_samples_by_variant(cuir: Callable, tmp_path: Path) -> None:
    lines = (ROOT / "benchmarks/results/eval-transcripts.jsonl").read_text(encoding="utf-8").splitlines()
    row = next(json.loads(line) for line in lines[1:] if "sigmoid" in line)
    results, folder = tmp_path / "eval.jsonl", tmp_path / "record"
    results.write_text(
        "\n".join([lines[0], json.dumps({**row, "variant": "sigmoid"}), json.dumps({**row, "variant": "full"})]), encoding="utf-8"
    )
    folder.mkdir()
    (folder / "sigmoid.jsonl").write_bytes((ROOT / "llm/transcripts/transfer-sigmoid.jsonl").read_bytes())
    assert cuir("eval", "--show", "--out", results, "--record", folder, "--html", tmp_path / "page.html").code == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count('class="exchange"') == 1 and page.count("No transcript is at hand") == 1
    assert "The text of this message is not in the transcript" in page, "system messages of the folder's file are not there"


ORIGIN, ADAPTED = cuir.parse(TEXT), cuir.parse(TEXT.replace("x * 2.0", "x * 3.0"))
EXCHANGES = [Exchange(1, "triple <it>", "no", "answer", ["A001: no program"], 7), Exchange(2, "again", "```cuir\n1\n```", "passed", [], 9)]


def triple(x):
    return 3 * x


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(cuda: object) -> None:
        raise CuirError.of("U503", "no nvcc")

    monkeypatch.setattr(resources_section, "compile_cuda", refuse)


@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize("right", [("double", {}), None])
def test_conversations_then_the_program(right: tuple[str, dict] | None) -> None:
    spec = prepare_specification(triple, ORIGIN.kernels()["double"])
    page = render_transfer_page("double to triple", "passed", {"Conversation 1": EXCHANGES}, ORIGIN, ADAPTED, spec, right)
    section = read_section(page, "conversation-1")
    assert all(words in section for words in ("triple <it>", "A001: no program", "Attempt 2: passed"))
    assert "x * 3.0" in read_section(page, "beside-the-origin") and "return 3 * x" in read_section(page, "variant")
    assert ("Workers over time" in page) == (right is not None) == ("compute[0]" in page)
    assert not OUTSIDE.search(page)
    assert_well_formed(page)


@pytest.mark.usefixtures("no_compiler")
def test_without_an_answer_there_is_no_program() -> None:
    spec = prepare_specification(triple, ORIGIN.kernels()["double"])
    page = render_transfer_page("t", "no answer", {"Conversation 1": []}, ORIGIN, None, spec, None)
    assert "No answer." in page and "Beside the origin" not in page
