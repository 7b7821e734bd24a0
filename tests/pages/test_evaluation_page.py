"""The page of an evaluation: figures, samples, and the conversations of those that failed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from cuir.pages.evaluation_page import Exchange, SampleOutcome, Table, render_evaluation_page
from tests.pages.html_text import OUTSIDE, assert_well_formed, read_section, read_text

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
