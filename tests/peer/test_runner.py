"""The runner of PyTorch's scenarios counts what happens: right results as right, wrong ones as wrong, and no case stops the others."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.peer import cases, faulty_cases, report
from tests.peer.judging import Differs, Wrong, judge
from tests.peer.running import Outcome, Setting, run, run_one
from tests.peer.trial import Trial, attention

ROOT = Path(__file__).parent.parent.parent
SAMPLE = (
    "test_flex_attention.py::test_causal_block",
    "test_flex_attention.py::test_num_warps_8_error",
    "test_flex_attention.py::test_logsumexp_correctness[bfloat16-_causal]",
    "test_flex_attention.py::test_block_size_changes[32x64]",
    "test_flex_decoding.py::test_windowed_full_mask_vs_sdpa",
    "test_flex_decoding.py::test_non_divisible_multi_token_offset_mask_with_captured_buffer",
    "attention-gym::attn_gym.masks[generate_tiled_natten-float16]",
    "attention-gym::attn_gym.mods[generate_tanh_softcap-float16]",
)


@pytest.mark.thorough("waits for scenarios that hang, ten seconds")
def test_each_end_is_counted_as_what_it_is() -> None:
    results = list(faulty_cases.load().values())
    outcomes = {o.name: o for o in run(results, faulty_cases.load, Setting(), workers=2, limit=8)}
    assert set(outcomes) == {case.name for case in results}
    for function, end in faulty_cases.EXPECTED.items():
        o = outcomes[f"{cases.ATTENTION}::{function.__name__}"]
        assert (o.outcome, o.code) == end, o
        assert o.theme == "faulty"
    assert outcomes[f"{cases.ATTENTION}::right_again"].outcome == "pass"
    assert "exit code 3" in outcomes[f"{cases.ATTENTION}::death"].message


@pytest.mark.sweep
@pytest.mark.parametrize("name", SAMPLE)
def test_a_sample_of_the_scenarios_passes(name: str) -> None:
    o = run_one(cases.load()[name], Setting())
    assert o.outcome == "pass", o


GOLDEN = torch.linspace(1, 2, 50, dtype=torch.float64)


@pytest.mark.parametrize(("off", "is_wrong"), [(0.0, False), (1e-3, False), (-1.05e-3, False), (2e-3, True), (0.1, True)])
def test_the_yardstick_is_the_error_of_pytorch(off: float, is_wrong: bool) -> None:
    eager, ours = (GOLDEN + 1e-3).half(), (GOLDEN + off).half()
    if is_wrong:
        with pytest.raises(Wrong):
            judge(GOLDEN, eager, ours)
    else:
        judge(GOLDEN, eager, ours)


def test_where_pytorch_is_infinite_ours_has_to_be() -> None:
    golden = torch.tensor([1.0, -torch.inf, 2.0], dtype=torch.float64)
    judge(golden, golden.float(), golden.float())
    for second in ([1.0, 0.0, 2.0], [-torch.inf, -torch.inf, 2.0], [1.0, torch.inf, 2.0], [1.0, torch.nan, 2.0]):
        with pytest.raises(Wrong):
            judge(golden, golden.float(), torch.tensor(second))


def test_where_pytorch_has_no_number_nothing_is_asked() -> None:
    golden = torch.tensor([1.0, torch.nan], dtype=torch.float64)
    judge(golden, golden.float(), torch.tensor([1.0, 5.0]))
    with pytest.raises(Wrong):
        judge(golden, golden.float(), torch.tensor([torch.nan, 5.0]))


@pytest.mark.parametrize("change", [lambda x: x.bfloat16(), lambda x: x[:-1], lambda x: x[None]])
def test_dtype_and_shape_are_pytorchs(change: Any) -> None:
    with pytest.raises(Differs):
        judge(GOLDEN, GOLDEN.half(), change(GOLDEN.half()))


def test_gradients_are_compared_where_they_are_wanted() -> None:
    """With a forward part that is right and a gradient that is not."""

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(context: Any, up: torch.Tensor) -> torch.Tensor:
            return 2 * up

    def case(name: str, change: Any) -> cases.Case:
        return cases.Case(cases.ATTENTION, name, "", "faulty", cases.BACKWARD, False, lambda t: faulty_cases.in_place(t, change))

    for name, change, end in (("same", lambda o: o, "pass"), ("twice", Twice.apply, "wrong")):
        assert run_one(case(name, change), Setting()).outcome == "pass"
        assert run_one(case(name, change), Setting(part="gradients")).outcome == end


@pytest.mark.sweep(4)
@pytest.mark.parametrize(("m", "off", "end"), [(1, 1, "pass"), (1, 8, "wrong"), (64, 1, "wrong")])
def test_few_numbers_are_judged_with_those_of_other_draws(m: int, off: int, end: str) -> None:
    """A result that is off for the first draw alone: in 64 numbers of 1,088 by little, in 64 by much, and in 4,096 that are judged alone."""
    trial, calls = Trial(), []
    tensors = trial.qkv((1, 4, m, 16), (1, 4, 128, 16), torch.float16)
    torch_call = attention()(trial.torch_api)

    def call(*inputs: torch.Tensor) -> torch.Tensor:
        calls.append(inputs)
        o = torch_call(*inputs)
        return o if len(calls) > 1 else o + off * 5e-5 * torch.randn_like(o)

    with pytest.raises(Wrong) if end == "wrong" else contextlib.nullcontext():
        trial.judge_found(call, torch_call, tensors, drawn=True)
    assert len(calls) == (17 if m == 1 else 1)
    assert len({tuple(x.flatten()[0].item() for x in inputs) for inputs in calls}) == len(calls)


def test_shrunk_lengths_stay_ragged_and_of_several_blocks() -> None:
    local, remote = Trial(), Trial.__new__(Trial)
    remote.native = True
    assert [local.length(n) for n in (1, 256, 512, 1023, 1024, 1025, 2045, 4096)] == [1, 256, 512, 511, 512, 385, 509, 512]
    assert (local.part(1000, 2048), local.part(512, 2048), local.part(40, 256), local.batch(22720)) == (250, 128, 40, 16)
    assert (remote.length(2045), remote.part(1000, 2048), remote.batch(22720)) == (2045, 1000, 22720)


def test_tables_count_outcomes_by_file_and_theme_and_code() -> None:
    def of(test: str, outcome: str, code: str = "", gradients: str = "") -> Outcome:
        return Outcome(f"{cases.DECODING}::{test}", outcome, code, "why", "", 1.0, cases.DECODING, "a theme", gradients)

    outcomes = [
        of("one", "pass"),
        of("two", "refused", "U109", "backward"),
        of("three", "refused", "U109"),
        of("four", "wrong"),
        of("five", "hang", "limit"),
    ]
    lines = report.table(outcomes).splitlines()
    assert lines[2] == f"| **{cases.DECODING}** | 5 | 1 | 2 (U109 2) | 1 | 0 | 0 | 1 | 1 | 0 |"
    assert lines[3].startswith("| a theme | 5 |") and lines[4].startswith("| **all** | 5 |")
    assert "| U109 | 2 |" in report.codes(outcomes)
    assert "| wrong | why | 1 | four | `four` |" in report.bad(outcomes) and "| hang, limit | why | 1 |" in report.bad(outcomes)
    assert report.summary(outcomes).startswith("1 of 5 cases pass (20.0 %), without gradients; 1 of these cases have no gradients to test.")
    assert report.file_counts(outcomes).splitlines()[2:] == [
        f"| {name} | 5 | 1 | 2 (U109 2) | 2 | 1 |" for name in (cases.DECODING, "**all**")
    ]


def test_tables_stand_between_the_marks_of_a_page() -> None:
    page = f"before\n{report.BEGIN}old\n{report.END}after\n"
    result = report.with_tables(page, [Outcome(f"{cases.GYM}::one", "pass", file=cases.GYM, theme="a theme")])
    assert (
        result.startswith(f"before\n{report.BEGIN}\n1 of 1 cases pass") and result.endswith(f"{report.END}after\n") and "old" not in result
    )
    with pytest.raises(ValueError, match="the page has no lines"):
        report.with_tables("before\n", [])


def test_the_page_counts_the_cases_that_there_are() -> None:
    page = (ROOT / "docs/notes/peer_tests.md").read_text(encoding="utf-8")
    counted = re.search(r"^\| \*\*all\*\* \| (\d+) \|", page, re.M)
    assert counted
    assert int(counted.group(1)) == sum(not case.native_only for case in cases.load().values())
    aside = re.search(r"(\d+) more cases of the originals are not counted", page)
    assert aside
    assert int(aside.group(1)) == sum(a.count for a in cases.ASIDE)
