"""The page of mutants: survivors first and beside their origin, scores by class and operator."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from cuir import show as cuir_show
from cuir.mutation import Job, Judged, MutateReport, choose_mutants, mutants
from cuir.pages.mutation_page import render_mutation_page
from cuir.spec.loading import load_any
from tests.pages.html_text import OUTSIDE, assert_well_formed, read_section, read_text
from tests.testing.programs import SCALE, TEXT

DIFF = "--- original\n+++ mutant\n@@ -3,3 +3,3 @@\n a = 1\n-b < 2\n+b < 3\n c = 4"


def judge(number: int, verdict: str, operator: str, fault: int = 1) -> Judged:
    stage, code = ("schedules", "R401") if verdict == "killed" else ("", "")
    return Judged(str(number), fault, operator, (4, 1), f"`b` of <{number}>", verdict, stage, code, "", 0.5, DIFF)


def test_survivors_come_first_and_stand_beside_the_origin() -> None:
    results = [
        judge(1, "killed", "drop wait"),
        judge(2, "survived", "drop wait"),
        judge(3, "killed", "late wait", 2),
        judge(4, "equivalent", "late wait"),
    ]
    page = render_mutation_page(MutateReport(results), {"kernel": "k<1>", "level": "quick"})
    text, survivors = read_text(page), read_section(page, "not-refused")
    assert "survived: drop wait at line 4: `b` of <2>" in survivors and "killed" not in survivors
    assert page.index("survived") < page.index('id="score-by-class"') < page.index("killed</b> by schedules R401")
    assert page.count('class="old"') == page.count('class="new"') == 4 and "b < 3" in text
    operators = read_section(page, "score-by-operator")
    assert operators.index("drop wait") < operators.index("late wait") and "1/2" in operators and "1/1" in operators
    assert "width:50%" in page and "k<1>" in text and not OUTSIDE.search(page)
    assert_well_formed(page)


def test_without_survivors_it_says_so() -> None:
    assert "Every faulty program was refused" in render_mutation_page(MutateReport([judge(1, "killed", "x")]), {})


def test_mutate_writes_a_page_of_a_finished_journal(cuir: Callable, tmp_path: Path) -> None:
    program, spec, journal = tmp_path / "k.cuir", tmp_path / "spec.py", tmp_path / "m.jsonl"
    program.write_text(TEXT, encoding="utf-8")
    spec.write_text("def reference(x, factor):\n    return x * factor\n", encoding="utf-8")
    loaded = load_any(str(spec), kernel=SCALE.kernels()["scale"])
    (mutant,) = choose_mutants(mutants(SCALE, "scale"), (), 1, 0)
    head = Job(lambda: loaded, "scale", {}, "quick", 60).head(SCALE, loaded.name)
    result = Judged(
        mutant.id,
        mutant.fault,
        mutant.operator,
        mutant.place,
        mutant.description,
        "survived",
        "",
        "",
        "",
        0.1,
        mutant.diff(cuir_show(SCALE)),
    )
    lines = f"{json.dumps(head)}\n{json.dumps(asdict(result))}\n"
    journal.write_text(lines, encoding="utf-8")
    call = ("mutate", program, "--against", spec, "--limit", "1", "--out", journal, "--html", tmp_path / "page.html")
    assert cuir(*call).code == 0 and journal.read_text(encoding="utf-8") == lines
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert mutant.operator in read_section(page, "not-refused") and "0 of 1 faulty programs refused" in read_text(page)
