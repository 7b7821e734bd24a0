"""The results that are kept: one run of each suite, with its table and plot, and pages that show the figures of these files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks import shown
from benchmarks.medians import medians
from cuir.performance.suites.results import Mean, geometric_mean, markdown, means, read

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks/results"
FILES = {path.name.partition(".jsonl")[0]: path for path in sorted(RESULTS.glob("*.jsonl*"))}


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def find_run(suite: str) -> Path:
    (result,) = RESULTS.glob(f"{suite}-h200-*.jsonl*")
    return result


def test_each_suite_has_one_run() -> None:
    names = [re.sub(r"-\d{4}-\d\d-\d\d$", "", name) for name in FILES]
    assert len(set(names)) == len(names) and not any("-run" in name for name in names)


@pytest.mark.sweep(32)
@pytest.mark.parametrize("name", FILES)
def test_table_and_plot_are_drawn_from_each_file(name: str, tmp_path: Path) -> None:
    shown.draw(FILES[name], tmp_path)
    rows = (tmp_path / f"{name}.md").read_text(encoding="utf-8").count("\n|")
    assert rows > 2 and (tmp_path / f"{name}.svg").read_text(encoding="utf-8").count("<path") > 10


def test_a_table_has_a_row_for_each_cell(tmp_path: Path) -> None:
    path = find_run("smoke")
    shown.draw(path, tmp_path)
    assert (tmp_path / f"{path.stem}.md").read_text(encoding="utf-8") == markdown(*read(path))


@pytest.mark.parametrize(
    "suffix, peers",
    [
        ("", {"reference": "tuned CUDA", "cudnn": "cuDNN", "fa2": "FlashAttention-2"}),
        ("-bf16", {"fa3": "FlashAttention-3", "cudnn": "cuDNN"}),
    ],
)
def test_the_page_shows_the_means_of_full_and_causal(suffix: str, peers: dict[str, str]) -> None:
    page = (ROOT / "docs/performance.md").read_text(encoding="utf-8")
    result = medians([find_run(f"flash{suffix}"), find_run(f"models{suffix}")])
    for peer, word in peers.items():
        shares = [of[f"ours / {peer}"] for of in result.values()]
        assert f"| {len(shares)} | {word} | {geometric_mean(shares):.3f} ({min(shares):.3f}) |" in page


@pytest.mark.parametrize("suite", ["masks", "paper", "variants"])
def test_the_page_shows_the_means_of_masks(suite: str) -> None:
    page = (ROOT / "docs/performance.md").read_text(encoding="utf-8")
    result = means(read(find_run(suite))[1])
    every: Mean = result["all"]["flex"]
    assert f"| {every.count} | FlexAttention | {every.text} |" in page
    if suite == "masks":
        (line,) = (x for x in page.splitlines() if x.startswith(f"| `{suite}`, FlexAttention |"))
        head = page.splitlines()[page.splitlines().index(line) - 2]
        shown_means = dict(zip(head.strip("| ").split(" | "), line.strip("| ").split(" | ")[1:], strict=True))
        assert shown_means == {name: of["flex"].text for name, of in result.items() if name in shown_means} and len(shown_means) > 7
