"""Public reports: a sample of them holds, and the page has a row for each."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.peer.cases import load_reports
from tests.peer.judging import Wrong
from tests.peer.reports import table
from tests.peer.reports.suite import DENSE, REPORTED, Attempt, ReportTrial, dense_attention
from tests.peer.running import PASS, WRONG, Outcome, Setting, run_one
from tests.peer.trial import Trial, attention

ROOT = Path(__file__).parents[3]
FORWARD = (
    "pytorch#153799 causal_mask_and_distance[compiled]",
    "pytorch#182593 full_or_partial[eager]",
    "flashinfer#4452 shorter_cache[eager]",
    "flash-attention#443 packed_with_few_keys[eager]",
    "attention-gym#53 checkpoints[not reentrant]",
    "user code: made in place masks_of_made_tensors[eager]",
    "user code: block tables tables_of_blocks[eager]",
)
GRADIENTS = (
    "pytorch#162228 bias_matrix_made_inside[compiled]",
    "transformers#41026 sinks_by_renormalisation[eager]",
    "Graphormer: graphormer_layers.py graph_distances[eager]",
    "user code: activations activations_of_scores[eager]",
)


@pytest.mark.sweep
@pytest.mark.parametrize(("part", "name"), [*(("forward", n) for n in FORWARD), *(("gradients", n) for n in GRADIENTS)])
def test_a_sample_of_the_reports_holds(part: str, name: str) -> None:
    o = run_one(load_reports()[f"public reports::{name}"], Setting(part=part))
    assert o.outcome == "pass", o


@pytest.fixture(scope="module")
def page() -> str:
    return (ROOT / "docs/public_reports.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def listed() -> str:
    return (ROOT / "tests/peer/reports/README.md").read_text(encoding="utf-8")


def test_the_list_has_a_row_for_each_report_and_the_page_for_each_refusal(page: str, listed: str) -> None:
    load_reports()
    assert f"{len(REPORTED)} reports:" in page
    for report in REPORTED.values():
        assert listed.count(f" | {report.title} | ") == 1, report
        rows = [line for line in page.splitlines() if line.startswith(f"| {report.title} |")]
        assert len(rows) == bool(report.why) and all(report.why in row for row in rows), report


def make_outcomes(wrong: str = "") -> list[Outcome]:
    """Make the outcomes of a run in which every case passes, but for those whose name holds `wrong`."""
    cases = load_reports()
    parts = [(name, part) for name, case in cases.items() for part in ("forward", *["gradients"] * bool(case.gradients))]
    return [Outcome(name, WRONG if wrong and wrong in name else PASS, part=part) for name, part in parts]


def test_the_page_and_the_list_are_what_passes_make(page: str, listed: str) -> None:
    assert table.replace_table(page, table.make_table(make_outcomes())) == page
    assert table.replace_table(listed, table.make_list(make_outcomes())) == listed


@pytest.mark.parametrize(
    ("wrong", "title"),
    [
        ("graph_distances", "biases by shortest paths"),
        ("heads_of_512", "heads of 512"),
        ("activations_of_scores", "activations of the score"),
    ],
)
def test_what_does_not_pass_is_remarked(wrong: str, title: str) -> None:
    outcomes = make_outcomes(wrong)
    _, _, failures = table.make_table(outcomes).partition("## What does not pass")
    for text in (failures, table.make_list(outcomes)):
        (row,) = (line for line in text.splitlines() if "wrong" in line)
        assert title in row and "forward eager: wrong" in row
        assert row.count("wrong") == sum(o.outcome == WRONG for o in outcomes)


def test_tables_stand_between_the_marks_of_a_page() -> None:
    page = table.replace_table(f"before\n{table.BEGIN}old\n{table.END}after\n", "new")
    assert page == f"before\n{table.BEGIN}\nnew\n\n{table.END}after\n"
    with pytest.raises(ValueError, match="no lines"):
        table.replace_table("before\n", "new")


def test_the_dense_reference_is_pytorchs_eager_call() -> None:
    x = torch.randn(3, 2, 2, 20, 8, dtype=torch.float64).unbind()
    mask = DENSE.create_block_mask(lambda b, h, q, k: q > k, None, None, 20, 20, device="cpu", BLOCK_SIZE=8)
    make = attention(lambda s, b, h, q, k: s * 2 + h - k, lambda api: mask, return_lse=True)
    o, lse = make(DENSE)(*x)
    expected, their_lse = make(Trial().torch_api)(*x)
    torch.testing.assert_close(o, expected)
    torch.testing.assert_close(lse, their_lse)


def test_a_gradient_that_is_off_is_wrong() -> None:
    class Off(torch.autograd.Function):
        @staticmethod
        def forward(context: object, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(context: object, up: torch.Tensor) -> torch.Tensor:
            return up * 1.001

    t = ReportTrial(Trial("interpret", "off", gradients=True, requires_gradients=True))
    attempt = Attempt(attention(), t.qkv((1, 1, 16, 8)))
    with torch.enable_grad():
        t.judge_found(attempt.make(t.torch_api), attempt.make(t.torch_api), attempt.tensors)
        with pytest.raises(Wrong):
            t.judge_found(lambda *x: Off.apply(dense_attention(*x)), attempt.make(t.torch_api), attempt.tensors)
