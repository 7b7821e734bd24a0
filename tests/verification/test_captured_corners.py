"""Verification refuses a derivative that is wrong at a corner or a tie alone, and no right one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import corpus
from cuir.attn.splicing.backward import KERNEL, transfer_backward
from cuir.attn.tracing import distributions
from cuir.attn.tracing import traced_functions as functions
from cuir.attn.tracing.read_ranges import trace_without_clashes
from cuir.checking.checked import Checked
from cuir.checking.checker import check
from cuir.spec.function_specification import FunctionSpecification
from cuir.spec.specification import Specification
from cuir.syntax.nodes import Program
from cuir.syntax.parser import parse
from cuir.syntax.types import F16
from cuir.text.diagnostics import CuirError
from cuir.verification import numbers_stage, stages, verify
from cuir.verification.captured_corners import collect_compared_numbers, make_corner_specifications
from cuir.verification.inputs import make_function_launch
from cuir.verification.lengths import make_all_draws
from cuir.verification.spec_dispatch import check_case, make_corner_cases, prepare_specification
from cuir.verification.values.cases import Draw

F = torch.nn.functional
EXPERT = parse(corpus.kernels()["flash_bwd_sm90"].read_text(), "flash_bwd_sm90.cuir")
CONSTS = {"T": F16, "D": 64, "BM": 64, "BN": 64}
GATES, POINTS, TEMPERATURES = torch.randn(4, generator=torch.Generator().manual_seed(0)), torch.randn(60, 3), torch.rand(4) + 0.5
SCORES: dict[str, Callable[..., Any]] = {
    "logsigmoid": lambda s, b, h, i, j: s + F.logsigmoid(GATES[h]) * (i - j) / 8,
    "asinh": lambda s, b, h, i, j: s * (1.5 + torch.asinh(GATES[h])),
    "maximum": lambda s, b, h, i, j: s + torch.maximum(GATES[h], 0.0 * s) * (i - j) / 8,
    "clamp": lambda s, b, h, i, j: s * (2.0 + GATES[h].clamp(-0.5, 0.75)),
    "of the score": lambda s, b, h, i, j: torch.asinh(s),
    "norm": lambda s, b, h, i, j: s - (POINTS[i] - POINTS[j]).norm(),
    "divided": lambda s, b, h, i, j: s / TEMPERATURES[h] + F.elu(GATES[h]) * (i - j) / 8,
}


def kernel_of(name: str) -> tuple[Specification, Program, Checked, Draw]:
    """The backward kernel of a score, and a small problem for it."""
    spec = Specification(name, None, SCORES[name])
    traced = trace_without_clashes(spec)
    program = transfer_backward(EXPERT, spec, traced=traced, learned=range(len(traced.parameters))).program
    checked = check(program, KERNEL, CONSTS)
    return spec, program, checked, Draw("one", dict.fromkeys(checked.dims, 3) | {"B": 1, "H": 2, "HK": 1, "M": 30, "N": 40, "MP": 128})


def judge(name: str) -> list[str]:
    """Checks the program of a score at its corners, and gives what was tried in words."""
    spec, program, checked, problem = kernel_of(name)
    tried = []
    for words, of, case in make_corner_cases(spec, program, checked, [problem]):
        check_case(program, checked, of, case)
        tried.append(words)
    return tried


def check_queries_of_zeros() -> None:
    spec, program, checked, problem = kernel_of("of the score")
    requests = prepare_specification(spec, checked.origin, program, CONSTS)
    assert isinstance(requests, FunctionSpecification)
    (draw,) = (replace(problem, kind=d.kind, seed=d.seed) for d in make_all_draws(checked, requests, "quick") if d.kind == "zero")
    assert not make_function_launch(checked, requests, draw).inputs["Q"].any()  # type: ignore[union-attr]
    check_case(program, checked, requests, draw)


def test_queries_of_zeros_are_among_the_problems() -> None:
    check_queries_of_zeros()


def test_a_derivative_that_is_0_for_scores_of_0_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "attach_partials", lambda value, partials, *operands: value)
    with pytest.raises(CuirError, match="V301"):
        check_queries_of_zeros()


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", [name for name in SCORES if name != "of the score"])
def test_right_derivatives_pass(name: str) -> None:
    tried = judge(name)
    assert "captured tensors of zeros" in tried and ("captured tensors at bounds" in tried or name != "clamp")


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", ["asinh", "clamp", "norm", "divided"])
def test_the_chain_rule_of_a_formula_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (functions, distributions):
        monkeypatch.setattr(module, "attach_partials", lambda value, partials, *operands: value)
    with pytest.raises(CuirError, match=r"V30[12]|X124"):
        judge(name)


def test_numbers_that_float32_does_not_have_are_no_bounds() -> None:
    """There float32 and float64 may decide otherwise, and a right program would be refused."""
    traced = trace_without_clashes(
        Specification("bounds", None, lambda s, b, h, i, j: s.clamp(-0.1, 0.75) + F.hardtanh(GATES[h], -0.25, 0.3))
    )
    assert {-0.25, 0.75} <= collect_compared_numbers(traced) and not {-0.1, 0.3} & collect_compared_numbers(traced)


def test_scores_without_captured_floats_have_no_corners_of_them() -> None:
    assert not list(make_corner_specifications(Specification("relu", None, lambda s, b, h, i, j: torch.relu(s))))


@pytest.mark.thorough
@pytest.mark.usefixtures("few_problems")
def test_verify_tries_corners(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawn numbers lie on no bound, so that another problem passes. Schedules have no part in it."""
    monkeypatch.setattr(stages._Verification, "schedules", lambda *arguments: None)
    monkeypatch.setattr(functions, "attach_partials", lambda value, partials, *operands: value)
    spec, program, _, problem = kernel_of("clamp")
    monkeypatch.setattr(numbers_stage, "make_number_cases", lambda *args: [problem])
    report = verify(program, spec, kernel=KERNEL, consts=CONSTS, seeded=0, shrink=False)
    assert not report.ok and report.diagnostics[0].code == "V301"
    assert any("captured tensors at bounds" in note.message for note in report.diagnostics[0].notes)
