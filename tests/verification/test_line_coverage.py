"""What no run has reached is said: code that the consts leave out, loops without a trip, branches that were never taken."""

from __future__ import annotations

import pytest
import torch

import corpus
from corpus.computes import COMPUTES
from cuir.checking.checker import check
from cuir.interp import run
from cuir.spec.function_specification import FunctionSpecification
from cuir.spec.loading import as_any
from cuir.syntax.parser import parse
from cuir.syntax.types import F8E4M3, F16, DType
from cuir.verification import stages, verify
from cuir.verification.line_coverage import find_unreached, forget_entered

TEXT = """\
@kernel(arch="sm_90a")
def scale(X: Global[f32, M, 32], Y: Global[f32, M, 32], *, TWICE: const = False):
    work = tiles(cdiv(M, 32))
    with role("all", warps=1):
        for t in work:
            x = X[t * 32 + rows(32), cols(32)]
            if TWICE:
                x = x + x
                x = x * 1.0
            for i in range(cdiv(M - 70, 64)):
                x = x + 0.0
            if t > 1:
                x = x * 1.0
            else:
                x = x * 2.0
            store(Y[t * 32 + rows(32), cols(32)], x)
"""


def find_reached(m: int, twice: bool = False) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    checked = check(parse(TEXT, "scale.cuir"), consts={"TWICE": twice})
    forget_entered(checked)
    run(checked, {"X": torch.ones(m, 32), "Y": torch.empty(m, 32)})
    return find_unreached(checked)


def test_lines_of_branches_and_loops_that_were_not_entered() -> None:
    assert find_reached(64) == ([(8, 9)], [(11, 13)])  # one range: what stands between them does nothing by itself
    assert find_reached(64, twice=True) == ([], [(11, 13)])
    assert find_reached(96) == ([(8, 9)], [])
    assert find_reached(96, twice=True) == ([], [])


def test_runs_add_up() -> None:
    checked = check(parse(TEXT, "scale.cuir"), consts={"TWICE": True})
    forget_entered(checked)
    assert find_unreached(checked) == ([], [(6, 16)])
    for m, remaining in ((32, [(11, 13)]), (71, []), (32, [])):
        run(checked, {"X": torch.ones(m, 32), "Y": torch.empty(m, 32)})
        assert find_unreached(checked) == ([], remaining)


def test_the_report_says_so() -> None:
    report = verify(parse(TEXT, "scale.cuir"), FunctionSpecification("scale", lambda X: torch.cat([X[:64] * 2.0, X[64:]])), seeded=0)
    assert (
        report.ok
        and report.left_out == [(8, 9)]
        and not report.unreached
        and "these consts leave out lines 8-9 of scale.cuir" in report.left_open
    )
    assert report.as_json()["left_out"] == [[8, 9]] and "lines 8-9" in report.as_markdown()
    assert (
        verify(parse(TEXT, "scale.cuir"), FunctionSpecification("scale", lambda X: X), shrink=False, seeded=0).left_open == ""
    )  # wrong: that is what is said


@pytest.mark.thorough("takes the numbers of three settings of the expert kernels")
@pytest.mark.parametrize(("name", "dtype", "keys"), [("flash_fwd_sm90", F16, 80), ("flash_fwd_f8_sm90", F8E4M3, 96)])
def test_all_of_the_expert_kernel_is_reached_by_some_setting(name: str, dtype: DType, keys: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the numbers alone. With groups of one head (L2=1) a ragged tile follows whole ones, so that a warpgroup behind the last query ends the tile before."""
    monkeypatch.setattr(stages._Verification, "schedules", lambda self, checked, shared: None)
    text = corpus.kernels()[name].read_text(encoding="utf-8")
    program, remaining = parse(text, f"{name}.cuir"), []
    for consts in ({}, {"BM": 192, "BN": keys}, {"AHEAD": False, "BM": 64, "BN": 64}):
        report = verify(program, corpus.variant("causal")(), consts={"T": dtype, "D": 64, "L2": 1, **consts}, seeded=0)
        assert report.ok and not (report.unreached and consts.get("AHEAD", True))  # else the lines are asked of the settings together
        remaining.append({line for a, b in (*report.left_out, *report.unreached) for line in range(a, b + 1)})
    lines = [text.splitlines()[line - 1].strip() for line in set.intersection(*remaining)]
    assert not any("finish(" in line or "mma_async" in line for line in lines), lines


LARGE = (
    "flash_fwd_cluster",
    "flash_fwd_f32",
    "flash_fwd_varlen_sm90",
    "flash_fwd_varlen_f32",
    "mla_decode_sm75",
    "gemm",
)  # with tiles of 64 these are no kernel, or have other parts


GRADIENTS = ("flash_bwd_sm90", "flash_bwd_wide_sm90", "flash_bwd_f32", "flash_bwd_dq_f32")  # which are a kernel at a head dim of 64, too
OTHERWISE = {"flash_fwd_sm90", "flash_fwd_f8_sm90"}  # above


@pytest.mark.thorough("a verification of each kernel of the corpus; the expert kernel has its test above")
@pytest.mark.parametrize(("name", "kernel"), [(name, kernel) for name in COMPUTES if name not in OTHERWISE for kernel in COMPUTES[name]])
def test_all_that_the_consts_leave_of_a_program_is_reached(name: str, kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a mutant of another line is the same kernel, and the numbers, without the runs of the schedules, have seen what any other mutant does."""
    monkeypatch.setattr(stages._Verification, "schedules", lambda self, checked, shared: None)
    text, expected_values = (corpus.programs() | corpus.kernels())[name].read_text(encoding="utf-8"), COMPUTES[name][kernel]
    program = parse(text, f"{name}.cuir")
    params = {p.name for p in program.kernels()[kernel].params}
    tiles = () if name in LARGE else ("BM", "BN")
    small = {n: 64 for n in ("D", *tiles) if n in params and (n not in expected_values.tested or name in GRADIENTS)}
    spec = as_any(corpus.specification(expected_values.specification), expected_values.specification)
    report = verify(program, spec, kernel, {"T": F16, **expected_values.tested, **small}, seeded=0)
    assert report.ok and not report.unreached, report.left_open
