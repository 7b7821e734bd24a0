"""Mutants of programs whose specification is a function: refused by schedules and numbers, and arguments without splice points."""

from __future__ import annotations

import pytest
import torch

import corpus
from corpus.computes import COMPUTES
from cuir import parse
from cuir.checking.checked import Const
from cuir.mutation import Mutant, mutants
from cuir.mutation.mutant_comparison import Trial, _is_same
from cuir.mutation.mutant_judging import Job, judge
from cuir.spec.loading import as_any
from cuir.syntax.nodes import Program
from cuir.syntax.printer import show
from cuir.syntax.types import F16


def make_mutants(program: str, kernel: str, consts: dict[str, Const]) -> tuple[Program, list[Mutant], Job]:
    parsed, computed = parse(corpus.programs()[program].read_text(encoding="utf-8"), program), COMPUTES[program][kernel]
    spec = as_any(corpus.specification(computed.specification), computed.specification)
    return parsed, mutants(parsed, kernel), Job(lambda: spec, kernel, {"T": F16, **computed.tested, **consts})


@pytest.mark.parametrize(
    ("operator", "verdict", "stage"),
    [
        ("drop mma_wait", "killed", "schedules"),
        ("drop fence_async", "killed", "schedules"),
        ("number", "killed", "numbers"),
        ("store_wait at the end", "same result", ""),
    ],
)
def test_mutants_of_a_matrix_product(operator: str, verdict: str, stage: str) -> None:
    program, result, job = make_mutants("gemm", "gemm", {"BM": 64, "BN": 64})
    chosen = [m for m in result if m.operator == operator and not m.equivalent]
    verdicts = [judge(m.text, show(program), job.load(), job) for m in chosen[:1]]
    assert [v[:2] for v in verdicts] == [(verdict, stage)], (verdicts, sorted({m.operator for m in result}))


def test_trips_that_leave_out_a_part() -> None:
    """Only parts far above the others tell: exp2 of the difference overflows."""
    program, result, job = make_mutants("decode_paged", "combine", {"D": 64})
    less = [m for m in result if "SP - 1" in m.description]
    assert len(less) >= 2
    for m in less:
        assert judge(m.text, show(program), job.load(), job)[:2] == ("killed", "numbers"), m.description


def test_launches_are_those_of_the_signature() -> None:
    program, result, job = make_mutants("gemm", "gemm", {"BM": 64, "BN": 64})
    trial = Trial(program, result[0].program, job.load(), "gemm", job.consts, "quick")
    assert {grid for _, grid in trial.launches} == {1, 2} and "long K" in trial.extent
    assert len(trial.problems) > 8 and trial.has_same_bits(program)


def test_sums_in_any_order_are_compared_as_numbers() -> None:
    x = torch.randn(100, generator=torch.Generator().manual_seed(0))
    y = x * (1 + 2.0**-22)
    assert not _is_same((x, True), (y, True)) and _is_same((x, False), (y, False)) and not _is_same((x, False), (x * 1.001, False))
    assert not _is_same((x, False), (torch.full_like(x, torch.nan), False))


def test_a_mutant_is_compared_on_the_inputs_of_the_original() -> None:
    """Decisive inputs are made from a kernel's text; the number of a row that has kept no key decides nothing."""
    program, result, job = make_mutants("decode_paged", "decode", {"D": 64})
    (mutant,) = (m for m in result if m.operator == "number" and m.place == (22, 30))
    trial = Trial(program, mutant.program, job.load(), "decode", job.consts, "quick")
    trial.problems = [(case, grid) for case, grid in trial.problems if "decisive 0" in str(case)]
    assert len(trial.problems) == 1 and trial.has_same_bits(mutant.program)
