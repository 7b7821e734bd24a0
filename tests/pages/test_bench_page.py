"""The page of a benchmark: a bar for each contender, longest for the fastest, failures named, machine and protocol."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from cuir.pages.bench_page import render_bench_page
from cuir.performance.suites.results import read
from tests.pages.html_text import OUTSIDE, assert_well_formed, read_text

RESULTS = Path(__file__).parents[2] / "benchmarks/results"


def test_bars_stand_beside_their_peers() -> None:
    head, rows = read(RESULTS / "smoke-h200-2026-11-23.jsonl")
    page = render_bench_page(head, rows)
    widths = {name: int(w) for w, name in re.findall(r"width:(\d+)px[^>]*></i>(\w+)", page.split("prefix_lm")[0])}
    assert set(widths) == {"cuir", "cudnn", "fa2", "flex"} and widths["cuir"] > widths["cudnn"] > widths["flex"] > widths["fa2"] > 0
    text = read_text(page)
    for words in (
        "causal llama2-7b 1024",
        "cudnn 405 (1.11 x)",
        "NVIDIA H200",
        "cuir bench smoke",
        "checked against float64",
        "1.11 (1.11)",
    ):
        assert words in text
    assert not OUTSIDE.search(page)
    assert_well_formed(page)


def test_what_failed_or_is_wrong_is_named() -> None:
    head, (row, *_) = read(RESULTS / "smoke-h200-2026-11-23.jsonl")
    wrong = {**row, "contenders": {**row["contenders"], "flex": {"wrong": "error <1>"}}}
    text = read_text(render_bench_page(head, [wrong, {**row, "failed": "no <memory>", "contenders": {}}], complete=False))  # type: ignore[list-item]
    assert "flex: error <1>" in text and "failed: no <memory>" in text and "not all rows" in text


def test_show_writes_a_page(cuir: Callable, tmp_path: Path) -> None:
    results = tmp_path / "smoke.jsonl"
    results.write_bytes((RESULTS / "smoke-h200-2026-11-23.jsonl").read_bytes())
    output = cuir("bench", "smoke", "--show", "--out", results, "--html", tmp_path / "page.html")
    assert output.code == 0 and "prefix_lm" in (tmp_path / "page.html").read_text(encoding="utf-8")
