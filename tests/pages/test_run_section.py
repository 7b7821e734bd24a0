"""The section of a run: the problem and the schedule of a finding run again, with its steps and its place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import cuir
from cuir.pages.run_section import render_verified_run
from cuir.pages.timeline_picture import FINDING
from cuir.text.diagnostics import CuirError
from cuir.verification.schedules import check_schedules
from cuir.verification.spec_dispatch import prepare_specification
from cuir.verification.values.cases import Draw
from tests.pages.html_text import OUTSIDE, assert_well_formed, read_text
from tests.pages.ring_programs import HANG, TEXT


def double(x):
    return 2 * x


def test_the_problem_of_a_finding_is_run_again() -> None:
    program = cuir.parse(HANG)
    checked = cuir.check(program)
    spec = prepare_specification(double, checked.origin)
    try:
        check_schedules(program, checked, spec, Draw("four tiles", {"M": 448}), "quick")
    except CuirError as error:
        html = render_verified_run(program, checked, spec, error.diagnostics)
    text = read_text(html)
    assert "four tiles: M=448, normal inputs; schedule in_order" in text and "ends with D401" in text
    assert f'stroke="{FINDING}"' in html and 'class="player"' in html and 'class="code program"' in html
    assert_well_formed(html)


def test_a_right_kernel_runs_a_small_problem() -> None:
    program = cuir.parse(TEXT)
    checked = cuir.check(program)
    html = render_verified_run(program, checked, prepare_specification(double, checked.origin), ())
    assert "One CTA" in html and "ends with" not in html and html.count("compute[0]") > 2


def test_explore_and_replay_write_pages(cuir: Callable, tmp_path: Path) -> None:
    (tmp_path / "k.cuir").write_text(HANG, encoding="utf-8")
    (tmp_path / "spec.py").write_text("def reference(x):\n    return 2 * x\n", encoding="utf-8")
    call = ("verify", tmp_path / "k.cuir", "--against", tmp_path / "spec.py")
    assert cuir(*call, "--exhaustive", "--out", tmp_path / "s.json", "--html", tmp_path / "a.html").code == 1
    assert cuir(*call, "--replay", tmp_path / "s.json", "--html", tmp_path / "b.html").code == 1
    for name, title in (("a.html", "Every schedule of double"), ("b.html", "A schedule of double")):
        page = (tmp_path / name).read_text(encoding="utf-8")
        assert title in page and "ends with D401" in page and 'class="player"' in page and not OUTSIDE.search(page)
        assert_well_formed(page)


def test_a_page_says_nothing_beside_one_problem(cuir: Callable, tmp_path: Path) -> None:
    output = cuir("verify", "gemm", "--problem", "M=8,N=8,K=8", "--html", tmp_path / "page.html")
    assert output.code == 2 and "--html says nothing beside --problem" in output.err and not (tmp_path / "page.html").exists()
