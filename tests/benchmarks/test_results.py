"""The results that are kept: one run of each suite, with its table and plot, and pages that show the figures of these files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks import shown
from benchmarks.medians import medians
from cuir.bench.results import Mean, geometric_mean, markdown, means, read

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks/results"
FILES = sorted(RESULTS.glob("*.jsonl"))
HEADS = {p: p.read_text(encoding="utf-8").partition("\n")[0] for p in FILES}
SUITES = [p for p in FILES if '"suite"' in HEADS[p] and '"structures"' not in HEADS[p]]  # those that `cuir bench` shows
OTHERS = [p for p in FILES if p not in SUITES and not p.name.startswith("eval-")]


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def kept(suite: str) -> Path:
    (found,) = RESULTS.glob(f"{suite}-h200-*.jsonl")
    return found


@pytest.mark.parametrize("path", FILES, ids=[p.stem for p in FILES])
def test_each_file_has_its_table_and_its_plot(path: Path) -> None:
    assert path.with_suffix(".md").is_file() and path.with_suffix(".svg").is_file()


def test_each_suite_has_one_run() -> None:
    names = [re.sub(r"-\d{4}-\d\d-\d\d$", "", p.stem) for p in FILES]
    assert len(set(names)) == len(names) and not any("-run" in name for name in names)


@pytest.mark.parametrize("path", SUITES, ids=[p.stem for p in SUITES])
def test_tables_of_suites_are_those_of_the_rows(path: Path) -> None:
    assert path.with_suffix(".md").read_text(encoding="utf-8") == markdown(*read(path))


@pytest.mark.parametrize("path", OTHERS, ids=[p.stem for p in OTHERS])
def test_other_tables_are_those_of_the_rows(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = tmp_path / path.name
    copy.write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["shown", str(copy)])
    shown.main()
    assert copy.with_suffix(".md").read_text(encoding="utf-8") == path.with_suffix(".md").read_text(encoding="utf-8")
    assert copy.with_suffix(".svg").read_text(encoding="utf-8").count("<path") > 10


@pytest.mark.parametrize("suffix, peers", [("", {"reference": "tuned CUDA", "cudnn": "cuDNN", "fa2": "FlashAttention-2"}),
                                           ("-bf16", {"fa3": "FlashAttention-3", "cudnn": "cuDNN"})])  # fmt: skip
def test_the_page_shows_the_means_of_full_and_causal(suffix: str, peers: dict[str, str]) -> None:
    page = (ROOT / "docs/performance.md").read_text(encoding="utf-8")
    found = medians([kept(f"flash{suffix}"), kept(f"models{suffix}")])
    for peer, word in peers.items():
        shares = [of[f"ours / {peer}"] for of in found.values()]
        assert f"| {len(shares)} | {word} | {geometric_mean(shares):.3f} ({min(shares):.3f}) |" in page


@pytest.mark.parametrize("suite", ["masks", "paper", "variants", "smoke"])
def test_the_page_shows_the_means_of_masks(suite: str) -> None:
    page = (ROOT / "docs/performance.md").read_text(encoding="utf-8")
    found = means(read(kept(suite))[1])
    every: Mean = found["all"]["flex"]
    assert f"| {every.count} | FlexAttention | {every.text} |" in page
    if suite in ("masks", "paper"):
        (line,) = (x for x in page.splitlines() if x.startswith(f"| `{suite}`, FlexAttention |"))
        head = page.splitlines()[page.splitlines().index(line) - 2]
        shown_means = dict(zip(head.strip("| ").split(" | "), line.strip("| ").split(" | ")[1:], strict=True))
        assert shown_means == {name: of["flex"].text for name, of in found.items() if name in shown_means} and len(shown_means) > 7
