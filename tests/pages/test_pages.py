"""Pages and pictures: what they show, that texts are escaped, that they need no network."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import cuir
from cuir.interp.event_trace import Event, Trace
from cuir.pages.mask_picture import BlockMap, count_blocks, render_blocks
from cuir.pages.page import Section, render_page, write_page
from cuir.pages.program_html import render_diff, render_program
from cuir.pages.timeline_picture import FINDING, render_timeline
from cuir.pages.verification_page import render_verification
from cuir.text.diagnostics import CuirError
from cuir.verification.report import Stage, VerifyReport
from tests.pages.html_text import OUTSIDE, read_text
from tests.testing.programs import SCALE, TEXT


def test_a_program_keeps_its_text_and_folds() -> None:
    output = render_program(SCALE)
    assert output.count("<details") == 1 and cuir.show(SCALE).strip() in read_text(output)


def test_a_diff_colours_what_differs() -> None:
    output = render_diff("a = 1\nb = 2\n", "a = 1\nb = 3\nc = 4\n")
    assert output.count('class="old"') == 1 and output.count('class="new"') == 2 and "b = 3" in read_text(output)
    assert "are equal" in render_diff("a = 1\n", "a = 1\n")


def test_blocks_are_counted_and_drawn() -> None:
    i = torch.arange(100)
    blocks = count_blocks(i[:, None] >= i, 40, 40)
    assert blocks.shares.shape == (3, 3) and blocks.shares[0, 1] == 0 and blocks.shares[2, 0] == 1 and 0 < blocks.shares[2, 2] < 1
    drawn = ElementTree.fromstring(render_blocks(BlockMap(blocks.shares, np.where(blocks.shares > 0, 0, -1)), "a < b"))
    titles = [t.text for t in drawn.iter("{http://www.w3.org/2000/svg}title")]
    assert titles[0] == "a < b" and "queries 0, keys 1: none, skipped" in titles and len(titles) == 10


def test_a_timeline_has_a_row_for_each_track_and_marks_a_line() -> None:
    trace = Trace([Event("compute[0]", "work", "work", 0, 100, 3), Event("copy engine", "<copy>", "copy", 10, 50, 7)])
    output = render_timeline(trace, marked_line=7)
    assert output.count("<rect") == 2 and output.count(f'stroke="{FINDING}"') == 1 and "&lt;copy&gt;" in output
    assert "No events" in render_timeline(Trace())


def test_a_report_shows_stages_and_diagnostics() -> None:
    stage = Stage(
        "numbers", "right?", "failed", "wrong <numbers>", CuirError.of("V301", "differs <by> 1").diagnostics, 1.0, [{"error": 1e-3}]
    )
    output = render_verification(VerifyReport("spec", "k", "quick", {}, [stage]))
    assert "wrong &lt;numbers&gt;" in output and "differs &lt;by&gt; 1" in output and "1.00e-03" in output and "<b>wrong</b>" in output


def test_a_page_escapes_titles_and_links_sections(tmp_path: Path) -> None:
    text = render_page("a <b>", "c & d", [Section("Workers over time", "<p>x</p>")])
    assert "a &lt;b&gt;" in text and 'href="#workers-over-time"' in text and 'id="workers-over-time"' in text and "<p>x</p>" in text
    assert not OUTSIDE.search(text)
    write_page(tmp_path / "folder" / "page.html", text)
    assert (tmp_path / "folder" / "page.html").read_text(encoding="utf-8") == text
    with pytest.raises(CuirError, match="cannot write"):
        write_page(tmp_path, text)


def test_a_block_mask_shows_its_blocks() -> None:
    mask = cuir.create_block_mask(lambda b, h, q, k: q >= k, None, None, 384, 384, device="cpu")
    titles = re.findall(r"<title>(queries [^<]*)", mask._repr_html_())
    assert sum(": some" in t for t in titles) == 3 and sum(": all" in t for t in titles) == 3
    assert "queries 0, keys 1: none, skipped" in titles and "queries 2, keys 2: some, visit 0" in titles
    assert "queries 2, keys 1: all, visit 2" in titles and "33.3 % are left out" in mask._repr_html_()


def test_a_large_mask_is_cut() -> None:
    drawn = render_blocks(BlockMap(np.ones((100, 65))))
    assert drawn.count("<title>queries") == 64 * 64 and "The first 64 of 100 rows and 64 of 65 columns" in drawn


def test_objects_show_themselves_in_notebooks() -> None:
    assert "<details" in SCALE._repr_html_() and "<table" in VerifyReport("s", "k", "quick", {})._repr_html_()
    assert "No events" in Trace()._repr_html_()


def test_verify_writes_a_page_of_a_fault(cuir: Callable, tmp_path: Path) -> None:
    (tmp_path / "k.cuir").write_text(TEXT.replace("* factor", "* (factor + 1.0)"), encoding="utf-8")
    (tmp_path / "spec.py").write_text("def reference(x, factor):\n    return x * factor\n", encoding="utf-8")
    output = cuir("verify", tmp_path / "k.cuir", "--against", tmp_path / "spec.py", "--html", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert output.code == 1 and "error[V301]" in text and "Workers over time" in text and not OUTSIDE.search(text)


@pytest.mark.thorough
def test_bridge_writes_a_page(cuir: Callable, tmp_path: Path) -> None:
    assert (
        cuir("bridge", "sliding_window", "--head-dim", "64", "--no-run", "--out", tmp_path / "out", "--html", tmp_path / "page.html").code
        == 0
    )
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    for title in (
        "Steps",
        "Beside the origin",
        "Verdict",
        "Mask",
        "Workers over time",
        "Program",
        "Variant",
        "Resources",
        "CuIR, CUDA, SASS",
    ):
        assert f"<h2>{title}</h2>" in text
    assert 'class="new"' in text and re.search(r"queries 3, keys 3: some, \d+% of pairs, visit 0", text) and not OUTSIDE.search(text)
