"""A checked program never fails in the interpreter with a Python exception; a correct one runs clean and alike under every schedule."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cuir.check import check
from cuir.diagnostics import CuirError
from cuir.interp import Schedule, run
from cuir.nodes import Program
from cuir.parser import parse
from cuir.printer import show
from tests.strategies.arguments import arguments
from tests.strategies.typed import kernels, mutants

FAULTY = sorted((Path(__file__).parents[2] / "corpus" / "faulty").glob("clean_*.cuir"))
schedules = st.one_of(
    st.just(Schedule()),
    st.integers(0, 99).map(Schedule.random),
    st.integers(0, 99).map(Schedule.adversarial),
    st.sampled_from(["engines_first", "workers_first", "reverse"]).map(Schedule.adversarial),
)


def outputs(program: Program, dims: Mapping[str, int], schedule: Schedule, lanes: int = 32) -> dict[str, torch.Tensor]:
    checked = check(program)
    given: dict[str, Any] = arguments(checked, dims)
    run(checked, given, schedule=schedule, lanes=lanes)
    return {t.name: given[t.name] for t in checked.tensors if t.written}


def same(a: Mapping[str, torch.Tensor], b: Mapping[str, torch.Tensor]) -> bool:
    return all(torch.equal(a[n].nan_to_num(7.0), b[n].nan_to_num(7.0)) for n in a)


@settings(max_examples=60)
@given(kernels(), schedules, st.sampled_from([1, 32]))
def test_correct_kernels_run_clean_and_alike_under_every_schedule(case, schedule, lanes):
    program = parse(case.text)
    first = outputs(program, {"M": case.M}, Schedule())
    assert same(first, outputs(program, {"M": case.M}, schedule, lanes))


@settings(max_examples=60)
@given(kernels(), st.data())
def test_mutants_of_random_kernels_run_or_are_refused(case, data):
    program = data.draw(mutants(parse(case.text)))
    _run_or_refuse(program, case.M, data.draw(schedules))


@settings(max_examples=150)
@given(st.data())
def test_mutants_of_the_clean_programs_run_or_are_refused(data):
    program = data.draw(mutants(parse(data.draw(st.sampled_from(FAULTY)).read_text())))
    _run_or_refuse(program, data.draw(st.sampled_from([0, 1, 64, 200])), data.draw(schedules))


def _run_or_refuse(program: Program, m: int, schedule: Schedule) -> None:
    try:
        outputs(parse(show(program)), {"M": m}, schedule)
    except CuirError as error:
        assert error.diagnostics and str(error)
