"""A checked program never fails in the interpreter with a Python exception; a correct one runs clean and alike under every schedule."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

import corpus
from cuir.arguments.binding import assume_consts
from cuir.checking.checked import Const
from cuir.checking.checker import check
from cuir.interp import Schedule, run
from cuir.syntax.nodes import Program
from cuir.syntax.parser import parse
from cuir.syntax.printer import show
from cuir.text.diagnostics import CuirError
from tests.strategies.arguments import arguments
from tests.strategies.effort import examples
from tests.strategies.typed import kernels, mutants

CORPUS = Path(__file__).parents[2] / "corpus"
CLEAN = [text for name, text in corpus.faulty().items() if name.startswith("clean_")]
PROGRAMS = sorted([*CORPUS.glob("programs/*.cuir"), *CORPUS.glob("kernels/*.cuir")])
DIMS = {"B": 1, "H": 2, "HK": 1, "M": 70, "N": 130, "K": 100, "NP": 4, "MP": 2, "SP": 2, "MT": 2}
CONSTS = {"decode": {"G": 2, "PAGE": 64}, "global_sliding_window": {"L": 64, "R": 64, "g": 16}}
schedules = st.one_of(
    st.just(Schedule()),
    st.integers(0, 99).map(Schedule.random),
    st.integers(0, 99).map(Schedule.adversarial),
    st.sampled_from(["engines_first", "workers_first", "reverse"]).map(Schedule.adversarial),
)


def outputs(
    program: Program,
    dims: Mapping[str, int],
    schedule: Schedule,
    lanes: int = 32,
    kernel: str | None = None,
    consts: Mapping[str, Const] | None = None,
) -> dict[str, torch.Tensor]:
    checked = check(program, kernel, consts)
    inputs: dict[str, Any] = arguments(checked, {name: dims.get(name, 3) for name in checked.dims})
    run(checked, inputs, schedule=schedule, lanes=lanes)
    return {t.name: inputs[t.name] for t in checked.tensors if t.written}


def same(a: Mapping[str, torch.Tensor], b: Mapping[str, torch.Tensor]) -> bool:
    return all(torch.equal(a[n].nan_to_num(7.0), b[n].nan_to_num(7.0)) for n in a)


@examples(2)
@given(kernels(), schedules, st.sampled_from([1, 32]))
def test_correct_kernels_run_clean_and_alike_under_every_schedule(case, schedule, lanes):
    program = parse(case.text)
    first = outputs(program, {"M": case.M}, Schedule())
    assert same(first, outputs(program, {"M": case.M}, schedule, lanes))


@examples(2)
@given(kernels(), st.data())
def test_mutants_of_random_kernels_run_or_are_refused(case, data):
    program = data.draw(mutants(parse(case.text)))
    _run_or_refuse(program, case.M, data.draw(schedules))


@examples(4)
@given(st.data())
def test_mutants_of_the_clean_programs_run_or_are_refused(data):
    program = data.draw(mutants(parse(data.draw(st.sampled_from(CLEAN)))))
    _run_or_refuse(program, data.draw(st.sampled_from([0, 1, 64, 200])), data.draw(schedules))


@examples(2)
@given(st.data())
def test_mutants_of_the_corpus_run_or_are_refused(data):
    path = data.draw(st.sampled_from(PROGRAMS))
    program = parse(path.read_text())
    kernel = data.draw(st.sampled_from(sorted(program.kernels())))
    consts = assume_consts(program.kernels()[kernel], {**CONSTS.get(kernel, {}), **CONSTS.get(path.stem, {})})
    schedule, mutant = data.draw(schedules), data.draw(mutants(program))
    try:
        outputs(parse(show(mutant)), DIMS, schedule, kernel=kernel, consts=consts)
    except CuirError as error:
        assert error.diagnostics and str(error)


def _run_or_refuse(program: Program, m: int, schedule: Schedule) -> None:
    try:
        outputs(parse(show(program)), {"M": m}, schedule)
    except CuirError as error:
        assert error.diagnostics and str(error)
